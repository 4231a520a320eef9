"""``whimbrel demo`` from end to end: a real broker, real devices, Spark, and an account that closes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from whimbrel.model.facts import Outcome
from whimbrel.sim.fleet import FLEET

_MAX_S = 600.0  # a machine that does much else at the same time

pytestmark = pytest.mark.slow

_PUBLISHED = re.compile(r" busy; .* published ([0-9,]+)")


def _started(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "whimbrel", "demo", *options]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )


def test_everything_that_was_published_is_accounted_for(tmp_path: Path) -> None:
    """Per device: delivered, held or ended; what devices say they received is what the pipeline says they did.

    Ctrl-C ends it early: whoever has seen enough still learns what became of everything.
    """
    with _started(
        "--seconds", "3600", "--rate", "120", "--seed", "3", "--keep", str(tmp_path / "kept"), "--json"
    ) as demo:
        assert demo.stderr is not None
        published = (int(found[1].replace(",", "")) for line in demo.stderr if (found := _PUBLISHED.search(line)))
        assert any(count > 600 for count in published)
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=_MAX_S)
    assert demo.returncode == 0, out + err
    assert "\x1b" not in out + err
    told = json.loads(out)
    assert told["closes"] is True
    published, devices = told["published"], told["account"]["devices"]
    assert published["acknowledged"] > 100
    assert published["in_log"] == published["acknowledged"] + published["once"] + published["arrived"]
    assert {each["device"] for each in devices} - {None} <= {device.name for device in FLEET.listening()}
    delivered = sum(each["delivered"] for each in devices)
    unseen, unconfirmed = (sum(each[name] for each in told["devices"]) for name in ("unseen", "unconfirmed"))
    # A device of the fleet is in one session that listens, so a notification is delivered to it once at most.
    assert sum(each["notifications"] for each in told["devices"]) == delivered - unseen + unconfirmed
    names = [outcome.value.replace(" ", "_") for outcome in Outcome]
    assert sum(each["held"] + sum(each[name] for name in names) for each in devices) >= told["account"]["wanted"] > 100
    assert (tmp_path / "kept" / "tables" / "deliveries").exists()
