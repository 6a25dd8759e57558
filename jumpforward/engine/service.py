"""A thread that runs a loop while there are requests, and the line in front of it."""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Event, Lock, Thread, current_thread
from weakref import WeakSet

from jumpforward.engine.handle import ServedTask
from jumpforward.engine.loop import Loop
from jumpforward.errors import EngineClosedError


class Slots:
    """Places for requests that wait. Who finds none free gets one in the order of asking."""

    def __init__(self, num_slots: int) -> None:
        self._num_free = num_slots
        self._waiting: deque[Future[None]] = deque()
        self._is_closed = False
        self._lock = Lock()

    def take(self) -> Future[None]:
        """Return a future that is done when the caller has a slot. Cancel it to ask no more."""
        slot: Future[None] = Future()
        with self._lock:
            if self._is_closed:
                slot.set_exception(closed_error())
            elif self._num_free:
                self._num_free -= 1
                slot.set_result(None)
            else:
                self._waiting.append(slot)
        return slot

    def give(self) -> None:
        """Give a slot back."""
        with self._lock:
            slot = self._next()
            if slot is None:
                self._num_free += 1
        if slot is not None:
            slot.set_result(None)

    def _next(self) -> Future[None] | None:
        while self._waiting:
            slot = self._waiting.popleft()
            if slot.set_running_or_notify_cancel():
                return slot
        return None

    def close(self) -> None:
        """Have all who wait, and all who ask from now on, told that the engine is closed."""
        with self._lock:
            self._is_closed = True
            refused = list(iter(self._next, None))
        for slot in refused:
            slot.set_exception(closed_error())


class Service:
    """Runs tasks in the background. Its thread, and with it the loop's cache, lasts while there are any."""

    def __init__(self, make_loop: Callable[[], Loop], max_waiting: int) -> None:
        self.slots = Slots(max_waiting)
        self._make_loop = make_loop
        self._inbox: deque[ServedTask] = deque()
        self._thread: Thread | None = None
        self._is_closed = False
        self._lock = Lock()
        self._wake = Event()
        _SERVICES.add(self)

    def submit(self, task: ServedTask) -> None:
        """Take in a task that has a slot.

        Raises:
            EngineClosedError: the service is closed.
        """
        with self._lock:
            if self._is_closed:
                raise closed_error()
            self._inbox.append(task)
            if self._thread is None:
                self._thread = Thread(target=self._work, name="jumpforward", daemon=True)
                self._thread.start()
        self.wake()

    def wake(self) -> None:
        """Have the thread look at its tasks."""
        self._wake.set()

    def close(self) -> None:
        """End every task with EngineClosedError, and wait for the thread's last step."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        self.slots.close()
        self.wake()
        if thread is not None and thread is not current_thread():
            thread.join()

    def _work(self) -> None:
        """Run a loop until it is idle. Whatever happens, every task ends."""
        loop: Loop | None = None
        try:
            loop = self._make_loop()
            while self._take_in(loop):
                loop.step()
                if loop.is_waiting_for_grammars:
                    self._wake.wait()
        except BaseException as error:
            self._fail_all(loop, error)

    def _take_in(self, loop: Loop) -> bool:
        """Move tasks from the inbox to the loop; return False, and forget the thread, where there is nothing to do.

        Raises:
            EngineClosedError: the service is closed.
        """
        self._wake.clear()
        with self._lock:
            if self._is_closed:
                raise closed_error()
            while self._inbox:
                loop.add(self._inbox[0])  # it stays in the inbox, where it is found if this fails
                self._inbox.popleft()
            if loop.is_idle:
                self._thread = None
            return not loop.is_idle

    def _fail_all(self, loop: Loop | None, error: BaseException) -> None:
        """End all tasks, and have the next one start another thread with another loop."""
        with self._lock:
            tasks = dict.fromkeys([*(loop.tasks if loop is not None else ()), *self._inbox])
            self._inbox.clear()
            self._thread = None
        for task in tasks:
            if task.outcome is None:
                task.end(error if isinstance(error, Exception) else RuntimeError(f"{error!r} in the loop"))


def closed_error() -> EngineClosedError:
    """Return what a request is told that comes too late."""
    return EngineClosedError("the engine was closed: submit requests before Engine.close(), and wait for their results")


_SERVICES: WeakSet[Service] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Stop the threads before the interpreter takes their modules apart."""
    for service in list(_SERVICES):
        service.close()
