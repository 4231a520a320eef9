"""One profile for every property test: the same effort everywhere, no deadline (tests never assert wall-clock time)."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("whimbrel", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=100)
settings.register_profile("thorough", parent=settings.get_profile("whimbrel"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "whimbrel"))
