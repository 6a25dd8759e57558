"""One hypothesis profile for every test: the same examples each time, no clock."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "jumpforward",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("jumpforward")
