"""The planner alone: nobody starves, budgets and padding are kept, every token is planned once."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from jumpforward.engine.scheduler import Part, Scheduler, Want, grouped

counts = st.integers(1, 40)


def padding(parts: list[Part]) -> int:
    longest = max(part.num_tokens for part in parts)
    return sum(longest - part.num_tokens for part in parts)


def running(num_rows: int, token_budget: int = 10, max_padding: int = 4) -> Scheduler:
    """Return a scheduler in which requests 0, 1, ... hold all rows."""
    scheduler = Scheduler(num_rows, token_budget=token_budget, max_padding=max_padding)
    for key in range(num_rows):
        scheduler.join(key, 1)
        scheduler.make_ready(key)
    assert scheduler.admit() == [(key, key) for key in range(num_rows)]
    return scheduler


def fed(scheduler: Scheduler, wants: Mapping[int, Want]) -> dict[int, int]:
    """Return how many tokens of each row a step feeds, having checked the step."""
    passes = scheduler.plan(wants)
    parts = [part for parts in passes for part in parts]
    assert len({part.key for part in parts}) == len(parts)
    assert all(0 < part.num_tokens <= wants[part.key].num_tokens for part in parts)
    assert sum(part.num_tokens for part in parts) <= scheduler.token_budget
    assert all(padding(parts) <= scheduler.max_padding for parts in passes)
    return {part.key: part.num_tokens for part in parts}


@given(
    chunks=st.lists(st.lists(st.tuples(counts, st.booleans()), max_size=5), min_size=1, max_size=7),
    token_budget=counts,
    max_padding=st.integers(0, 20),
)
def test_every_token_is_planned_once_and_nobody_starves(
    chunks: list[list[tuple[int, bool]]], token_budget: int, max_padding: int
) -> None:
    num_rows = len(chunks)
    scheduler = running(num_rows, token_budget, max_padding)
    left = [[list(chunk) for chunk in row] for row in chunks]
    num_fed = [0] * num_rows
    num_passed_over = [0] * num_rows
    while any(left):
        wants = {key: Want(*row[0]) for key, row in enumerate(left) if row}
        step = fed(scheduler, wants)
        assert sum(step.values()) == min(token_budget, sum(want.num_tokens for want in wants.values()))
        for key in wants:
            num_passed_over[key] = 0 if key in step else num_passed_over[key] + 1
            assert num_passed_over[key] < num_rows
        for key, num_tokens in step.items():
            num_fed[key] += num_tokens
            left[key][0][0] -= num_tokens
            if not left[key][0][0]:
                left[key].pop(0)
    assert num_fed == [sum(num_tokens for num_tokens, _ in row) for row in chunks]


@given(lengths=st.lists(counts, min_size=1, max_size=12), max_padding=st.integers(0, 30))
def test_groups_are_bounded_and_none_is_made_in_vain(lengths: list[int], max_padding: int) -> None:
    parts = [Part(key, num_tokens) for key, num_tokens in enumerate(lengths)]
    passes = grouped(parts, max_padding)
    assert sorted(part for group in passes for part in group) == parts
    assert all(padding(group) <= max_padding for group in passes)
    for group, following in pairwise(passes):
        assert padding([*group, following[0]]) > max_padding


def test_a_prompt_takes_what_the_rows_in_their_output_leave() -> None:
    scheduler = running(3)
    wants = {0: Want(50, True), 1: Want(2, False), 2: Want(1, False)}
    assert fed(scheduler, wants) == {1: 2, 2: 1, 0: 7}
    assert [[part.key for part in parts] for parts in scheduler.plan(wants)] == [[0], [1, 2]]


def test_who_was_passed_over_comes_first() -> None:
    scheduler = running(3)
    wants = {0: Want(8, False), 1: Want(6, False), 2: Want(50, True)}
    assert fed(scheduler, wants) == {0: 8, 1: 2}
    assert fed(scheduler, wants) == {2: 10}
    assert fed(scheduler, wants) == {0: 8, 1: 2}


def test_unready_requests_hold_nobody_up_and_get_no_priority() -> None:
    scheduler = Scheduler(1, token_budget=1, max_padding=0)
    for key in range(4):
        scheduler.join(key, 1)
    for key in (1, 2):
        scheduler.make_ready(key)
    assert scheduler.admit() == [(1, 0)]
    scheduler.make_ready(0)  # arrived first, ready last
    scheduler.leave(1)
    assert scheduler.admit() == [(2, 0)]
    scheduler.make_ready(3)
    scheduler.leave(2)
    assert scheduler.admit() == [(0, 0)]


# Joining with a length, becoming ready, leaving.
moves = st.lists(st.tuples(st.sampled_from(["join", "ready", "leave"]), st.integers(0, 30)), min_size=20, max_size=60)


@given(moves=moves, num_rows=st.integers(1, 4), max_cells=st.sampled_from([None, 31, 50, 70]))
def test_rows_go_in_the_order_of_becoming_ready_and_memory_is_kept(
    moves: list[tuple[str, int]], num_rows: int, max_cells: int | None
) -> None:
    scheduler = Scheduler(num_rows, token_budget=1, max_padding=0, max_cells=max_cells)
    lengths: dict[int, int] = {}
    unready: list[int] = []
    ready: list[int] = []
    rows: dict[int, int] = {}
    for move, number in moves:
        if move == "join":
            lengths[len(lengths)] = number + 1
            unready.append(len(lengths) - 1)
            scheduler.join(unready[-1], number + 1)
        elif move == "ready" and unready:
            ready.append(unready.pop(number % len(unready)))
            scheduler.make_ready(ready[-1])
        elif move == "leave" and (there := [*unready, *ready, *rows]):
            key = there[number % len(there)]
            scheduler.leave(key)
            unready, ready = ([other for other in line if other != key] for line in (unready, ready))
            rows.pop(key, None)
        for key, row in scheduler.admit():
            assert key == ready.pop(0)
            assert row not in rows.values()
            rows[key] = row
            assert row < num_rows
        longest = max((lengths[key] for key in rows), default=0)
        if max_cells is not None:
            assert (max(rows.values(), default=-1) + 1) * longest <= max_cells
        # Nobody waits in front of a free row, unless for memory.
        assert not ready or len(rows) == num_rows or (max_cells is not None and rows)


def test_what_can_never_fit_is_known() -> None:
    assert Scheduler(2, token_budget=1, max_padding=0, max_cells=7).fits(7)
    assert not Scheduler(2, token_budget=1, max_padding=0, max_cells=7).fits(8)
    assert Scheduler(2, token_budget=1, max_padding=0).fits(10**9)
