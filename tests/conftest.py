"""What all tests share: the effort of property tests, and Java: which, and set up for runs of a minute.

No property test has a deadline: tests never assert wall-clock time.
"""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

settings.register_profile("whimbrel", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=100)
settings.register_profile("thorough", parent=settings.get_profile("whimbrel"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "whimbrel"))

_JAVA_HOME = Path(__file__).parents[1] / ".java" / "home"
if "JAVA_HOME" not in os.environ and _JAVA_HOME.exists():  # `make java` chose one; `make test` exports it
    os.environ["JAVA_HOME"] = _JAVA_HOME.read_text(encoding="utf-8").strip()
# Of every Java that is started below: for less than a minute its second compiler costs more than it saves.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
os.environ.setdefault("SPARK_DAEMON_JAVA_OPTS", os.environ["SPARK_SUBMIT_OPTS"])
