"""Work that may wait gives way, with its session where it leads one; nobody else's session is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LOOK = """
import json, os, sys
from pathlib import Path
from whimbrel.cli.process.niceness import give_way
before = os.nice(0)
give_way(int(sys.argv[1]), autogroup=Path(sys.argv[2]))
print(json.dumps(os.nice(0) - before))
"""


def looked(by: int, autogroup: Path, *, leads: bool) -> int:
    """Return how much nicer a process became."""
    command = [sys.executable, "-c", LOOK, str(by), str(autogroup)]
    found = subprocess.run(command, check=True, capture_output=True, text=True, start_new_session=leads)
    level: int = json.loads(found.stdout)
    return level


@pytest.fixture
def autogroup(tmp_path: Path) -> Path:
    """Return a file that stands for the kernel's."""
    path = tmp_path / "autogroup"
    path.write_text("as it was")
    return path


def test_who_leads_a_session_gives_way_with_it(autogroup: Path) -> None:
    """A service has a session of its own, which would count as one that is not nice."""
    assert looked(3, autogroup, leads=True) == 3
    assert int(autogroup.read_text()) == os.nice(0) + 3


def test_the_session_of_a_shell_stays_as_it_is(autogroup: Path) -> None:
    """It is not ours."""
    assert looked(3, autogroup, leads=False) == 3
    assert autogroup.read_text() == "as it was"


def test_nothing_changes_by_nothing(autogroup: Path) -> None:
    """``--nice 0`` is off."""
    assert looked(0, autogroup, leads=True) == 0
    assert autogroup.read_text() == "as it was"


def test_a_system_without_autogroups_will_do(tmp_path: Path) -> None:
    """Nothing here is needed."""
    assert looked(3, tmp_path / "no" / "such", leads=True) == 3


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this system has no autogroups")
def test_a_real_session_is_as_nice_as_its_leader() -> None:
    """The kernel takes what we write."""
    script = (
        "from whimbrel.cli.process.niceness import give_way\ngive_way(3)\nprint(open('/proc/self/autogroup').read())"
    )
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, check=True, capture_output=True, text=True, start_new_session=True)
    assert found.stdout.split()[-1] == str(os.nice(0) + 3)


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="this system has no scheduling policies")
@pytest.mark.parametrize("policy", ["SCHED_IDLE", "SCHED_BATCH"])
def test_who_is_more_modest_already_stays_so(autogroup: Path, policy: str) -> None:
    """An operator who has put the stream behind everything else knows why."""
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom whimbrel.cli.process.niceness import give_way\n"
        f"os.sched_setscheduler(0, os.{policy}, os.sched_param(0))\n"
        f"give_way(3, autogroup=Path(sys.argv[1]))\nprint(os.sched_getscheduler(0) == os.{policy})"
    )
    command = [sys.executable, "-c", script, str(autogroup)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "True"
