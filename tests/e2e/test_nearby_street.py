"""Daemons of nearby groups on real sockets: the paper's figures, a partition that heals, deadlines under load.

Each node has a network namespace of its own, on one bridge, where this machine lets us make them; the test says so, and
otherwise runs over loopback with injected reach. One scenario runs over loopback in any case.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

STREET = Path(__file__).with_name("nearby_street.py")


@cache
def _has_namespaces() -> bool:
    """Tell whether an ordinary user may make network namespaces and joined interfaces here."""
    tried = "ip link add one type veth peer name other && ip link add br0 type bridge"
    try:
        return subprocess.run(["unshare", "-Urnm", "sh", "-c", tried], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _play(
    scenario: str, capsys: pytest.CaptureFixture[str], *, over_loopback: bool = False, path: Path | None = None
) -> Any:
    in_namespaces = _has_namespaces() and not over_loopback
    with capsys.disabled():
        where = "in network namespaces" if in_namespaces else "over loopback with injected reach"
        print(f" [{scenario} {where}]", end="")  # noqa: T201 # the test says so
    begin = ["unshare", "-Urnm"] if in_namespaces else []
    command = [*begin, sys.executable, str(STREET), scenario, *([] if in_namespaces else ["loopback"])]
    environment = os.environ if path is None else {**os.environ, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    found = json.loads(done.stdout)
    if "lost by" in found:
        with capsys.disabled():
            print(f" [{scenario}: frames lost by {found['lost by']}]", end="")  # noqa: T201 # the test says so
    return found


def test_figures_2_and_3_over_sockets(capsys: pytest.CaptureFixture[str]) -> None:
    """The same table as through the cores."""
    found = _play("figures", capsys)
    assert found == {
        "figure 2": {"s1": [False, False], "s2": [True, True], "s3": [True, False], "s4": [False, False]},
        "members": {"A": ["c1", "c2"], "B": ["c2", "c3"]},
        "figure 3": {"c1": [1], "c2": [2, 3], "c3": [3]},
    }


def test_a_partition_heals_under_loss(capsys: pytest.CaptureFixture[str]) -> None:
    """Three vehicles, a light and an ambulance, one frame in five lost; nothing twice, and misses on both sides."""
    found = _play("partition", capsys)
    everything = sorted(["('ambulance', 1)", *(f"('light', '{number}')" for number in range(5))])
    assert found["before"] == dict.fromkeys(("car1", "car2", "car3"), everything)
    assert found["cut off"] == 6
    assert found["healed"] == "7"
    assert found["twice"] == []
    assert found["missed"] == found["reported"] == 2
    assert {"member joined", "member returned", "member silent"} <= set(found["light saw"])


@pytest.mark.parametrize("over_loopback", [False, True])
def test_netem_loses_frames_where_the_kernel_has_it(capsys: pytest.CaptureFixture[str], *, over_loopback: bool) -> None:
    """It is tried, not assumed; where it is missing user space loses the same share."""
    found = _play("loss", capsys, over_loopback=over_loopback)
    assert found["lost by"] in ({"user space"} if over_loopback else {"netem", "user space"})
    assert 560 < found["heard"] < 720


@pytest.mark.skipif(not _has_namespaces(), reason="network namespaces are not permitted here")
@pytest.mark.parametrize("answer", [0, 2])
def test_what_tc_answers_decides_who_loses_frames(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, answer: int
) -> None:
    """A tc that takes netem, and one that does not: each node's port is asked, and nobody loses frames twice."""
    (tmp_path / "tc").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nexit {answer}\n', encoding="utf-8")
    (tmp_path / "tc").chmod(0o755)
    found = _play("loss", capsys, path=tmp_path)
    asked = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
    assert asked[0] == "qdisc replace dev v0 root netem loss 20%"
    if answer:
        assert (found["lost by"], len(asked)) == ("user space", 1)
    else:  # this tc only says so: the kernel loses nothing, and neither does user space
        assert (found["lost by"], len(asked)) == ("netem", 2)
        assert found["heard"] >= 800


@pytest.mark.parametrize("over_loopback", [False, True])
def test_nothing_is_delivered_late_under_load(capsys: pytest.CaptureFixture[str], *, over_loopback: bool) -> None:
    """An application that is too slow: what is late is expired, here and in the producer's account."""
    found = _play("load", capsys, over_loopback=over_loopback)
    assert found["delivered"] >= 1
    assert found["delivered"] + found["expired"] == 60
    assert found["reported"] == found["expired"]
    assert found["late"] == 0
    assert found["malformed"] == 200
