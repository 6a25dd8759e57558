"""One hypothesis profile for every test: the same examples each time, no clock. And the real model, loaded once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

import jumpforward as jf

settings.register_profile(
    "jumpforward",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("jumpforward")


@pytest.fixture(autouse=True)
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run tiny models on one thread: for them, waking a second one costs more than it gives."""
    before = torch.get_num_threads()
    if request.node.get_closest_marker("model") is None:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def real_engine() -> jf.Engine:
    """The default model in float32."""
    return jf.Engine.from_pretrained(dtype="float32")
