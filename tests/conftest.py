"""What holds for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine is no failure: no test asserts an absolute time, nor does the making of examples.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.load_profile("steady")
