"""``bench/core_time.py``: what it is asked for, and what it needs; the counts themselves are the bench's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_SCENARIO = "1 → 1, QoS 0"


def _error_of(*words: str, path: str = os.defpath) -> str:
    """Return the error output of a run that measures nothing."""
    command = [sys.executable, str(_ROOT / "bench" / "core_time.py"), str(_ROOT), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": path})
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_instructions_are_counted_with_valgrind_or_not_at_all(tmp_path: Path) -> None:
    """A figure of another kind in their place would be compared with them."""
    assert _error_of("--instructions", _SCENARIO, path=str(tmp_path)) == (
        "valgrind was not found; --instructions needs its callgrind, so install valgrind.\n"
    )


def test_a_scenario_that_there_is_not_is_refused_with_those_there_are() -> None:
    """Its name has arrows and commas in it."""
    said = _error_of("1 to 1")
    assert "found the scenario '1 to 1'" in said
    assert _SCENARIO in said
