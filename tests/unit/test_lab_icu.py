"""SUBLIM's figures made again: a battery's life, each point in a process of its own; quick forms."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from whimbrel.cli.main import main
from whimbrel.lab import own_processes
from whimbrel.lab.own_processes import FailedPointError, OwnPoint, make_points
from whimbrel.lab.sublim.icu_bandwidth import bandwidth
from whimbrel.lab.sublim.icu_battery import battery
from whimbrel.lab.sublim.icu_overhead import PAPER_8B, overhead


def lab(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """Run ``whimbrel lab`` and return the exit code."""
    monkeypatch.setattr(sys, "argv", ["whimbrel", "lab", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_the_quick_battery_shows_what_the_paper_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Figure 7: longest without messages, longer stateful than stateless, up to 31 %; with every constant's source."""
    options = ("icu-battery", "--quick", "--out", str(tmp_path), "--json")
    assert not lab(monkeypatch, *options)
    first = json.loads(capsys.readouterr().out)
    assert all(first["claims"].values()), first["claims"]
    assert first["points"] == 9
    lives, varied, used, constants = first["tables"]
    assert [row[0] for row in lives["rows"]] == ["20", "120"]
    assert [row[4] for row in varied["rows"]] == ["reached", "not reached"]
    assert len(used["rows"]) == 4
    assert all(row[2].split(":")[0] in {"measured", "derived", "assumed"} for row in constants["rows"])
    assert (tmp_path / "icu-battery.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(subprocess, "Popen", None)  # nothing is made again
    assert not lab(monkeypatch, *options)
    assert json.loads(capsys.readouterr().out)["tables"] == first["tables"]


def test_the_whole_battery_has_the_papers_rates() -> None:
    """20 to 120 messages a minute, and what is assumed is varied at one of them."""
    experiment = battery()
    settings = [point.settings for point in experiment.own]
    assert sorted({each["per_minute"] for each in settings}) == [0, 20, 40, 60, 80, 100, 120]
    assert len(settings) == 1 + 2 * 6 + 2 * 9
    assert len({point.key for point in experiment.own}) == len(settings) - 2  # one of the varied is the figure's own


def test_the_whole_bandwidth_has_the_papers_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 to 120 a minute, the period swept from 5 to 60 s, and tc beside the relay where it can be had."""
    for missing, links in ((None, {"relay", "tc"}), ("not permitted", {"relay"})):
        monkeypatch.setattr("whimbrel.lab.sublim.icu_bandwidth.why_not_shaped", lambda missing=missing: missing)
        experiment = bandwidth()
        settings = [point.settings for point in experiment.own]
        assert sorted({each["per_minute"] for each in settings}) == [20, 40, 60, 80, 100, 120]
        assert sorted({each["redrawn_s"] for each in settings}) == [5, 15, 30, 60]
        assert {each["link"] for each in settings} == links
        assert [each["kernel_unsent_bytes"] for each in settings if "kernel_unsent_bytes" in each] == [0] * 3
        assert {each["policy"] for each in settings} == {"stateless", "stateful", "remembering"}
        assert experiment.assumptions.get("left out") == missing


def test_what_a_bandwidth_row_says_is_found() -> None:
    """Shares, gains, and whether compression follows a link that was reported as bad."""
    good = {"at_s": 30, "network_connection": 1.0, "mean_bytes": 99_000.0, "received": 60}
    bad = {"at_s": 60, "network_connection": 0.6, "mean_bytes": 99_000.0, "received": 36}
    small = {"at_s": 90, "network_connection": 0.9, "mean_bytes": 80_000.0, "received": 58}
    row = {
        "per_minute": 120,
        "redrawn_s": 5.0,
        "link": "relay",
        "published": 100,
        "received": 90,
        "mean_rate": 800_000.0,
        "kernel_unsent_bytes": 16_384,
    }
    stateless = {**row, "policy": "stateless", "in_time": 20, "series": []}
    for series, in_time, is_so in (([good, bad, small], 37, True), ([good, small, bad], 34, False)):
        of = {**row, "in_time": in_time, "series": series}
        found = bandwidth(is_quick=True).find(
            [stateless, {**of, "policy": "stateful"}, {**of, "policy": "remembering", "in_time": in_time - 1}]
        )
        assert list(found.claims.values()) == [True, True, is_so, is_so, is_so]
        shares = ("90%", "90%", "90%", "20%", f"{in_time}%", f"{in_time - 1}%")
        gains = (f"+{in_time - 20}", f"+{in_time - 21}")
        assert found.tables[0].rows[0] == ("120, 5 s", "50%", *shares, *gains)


def test_the_whole_overhead_has_the_papers_points() -> None:
    """Figures 5 and 8b with their subscribers, rates and malicious shares; three runs where it counts."""
    settings = [dict(point.settings) for point in overhead().own]
    paced = [each for each in settings if each.get("per_minute") and "run" in each]
    figure_5 = {(each["doctors"], each["per_minute"]) for each in paced if not each.get("malicious")}
    assert figure_5 >= {(doctors, rate) for doctors in (20, 60, 100, 140, 180, 220) for rate in (30, 60, 120, 240)}
    kinds = {(each["doctors"], each["per_minute"], round(100 * each.get("malicious", 0))) for each in paced}
    assert kinds >= PAPER_8B.keys()
    runs = Counter((each["doctors"], each["per_minute"]) for each in paced if each["policy"] == "blind")
    assert {doctors for (doctors, rate), count in runs.items() if count == 3 and rate >= 120} == {180, 200, 220}
    assert {count for (doctors, rate), count in runs.items() if doctors < 180 or rate < 120} == {1}
    assert [each["is_limited"] for each in settings if not each.get("is_limited", True)] == [False] * 4
    assert len({point.text for point in overhead().own}) == len(settings)
    few = overhead(figure="8b", subscribers=[100], rates=[240], runs=1)
    assert len(few.own) == 4


def _overhead_row(**changed: object) -> dict[str, Any]:
    row = {
        "policy": "stateful",
        "doctors": 200,
        "per_minute": 240.0,
        "own": 20,
        "patients": 20,
        "states": "mixed",
        "malicious": 0.0,
        "is_failing": False,
        "is_limited": True,
        "repeats_bodies": False,
        "published": 100,
        "accepted": 100,
        "duration_s": 10.0,
        "duration_honest_s": 10.0,
        "delivered": 1_000,
        "load": [1.0, 1.0],
        "delivered_honest": 1_000,
        "delivered_malicious": 0,
        "malicious_doctors": 0,
        "told": {},
        "warnings": 1,
        "broker_core_s": 1.0,
        "workers_core_s": 1.0,
        "p50_ms": 1.0,
        "p99_ms": 2.0,
        "transforms": 1_200,
        "p99_ms_of_each": {"d": 2.0},
        "decisions": {"delivered": 1_000},
        "outcomes": {},
    }
    return row | changed


def test_what_overhead_rows_say_is_found() -> None:
    """O, the growth of p99, who was told, compressions a notification and the account: each claim can fail."""
    blind = _overhead_row(policy="blind", transforms=0)
    full = _overhead_row(duration_honest_s=10.9)
    told = {"doctor-9": {"slowed": 1}}
    bad = {"malicious": 0.1, "malicious_doctors": 1, "duration_honest_s": 10.95}
    good = _overhead_row(**bad, told=told, warnings=2, p99_ms_of_each={"d": 4.0})
    worse = {"warnings": 0, "told": {"doctor-9": {}}, "p99_ms_of_each": {"d": 4.1}, "duration_honest_s": 11.1}
    worse["transforms"] = 1_300
    for row, is_so in ((good, True), (_overhead_row(**(bad | worse)), False)):
        found = overhead().find([blind, full, row])
        assert set(found.claims.values()) == {is_so}, found.claims
        assert len(found.claims) == 5
        assert "9.0%" in found.tables[0].rows[0]
    account = {"account": {"delivered": 5, "withheld": 4, "expired": 1}, "due": 10, "unaccounted": 0, "repeated": 0}
    for changed, is_so in (({}, True), ({"due": 11}, False), ({"unaccounted": 1}, False)):
        found = overhead().find([{**account, "published": 1, **changed}])
        assert list(found.claims.values()) == [is_so]


def test_what_a_saturated_row_says_is_found() -> None:
    """Deliveries a second and processor time of each, beside the blind broker."""
    of = {"states": "served", "transforms": 0}
    blind = [_overhead_row(**of, policy="blind", per_minute=rate) for rate in (0.0, 240.0)]
    for factor, is_so in ((1.0, True), (2.1, False)):
        slow = {"duration_s": 10.0 * factor, "broker_core_s": 1.0 * factor}
        made = _overhead_row(**of, per_minute=0.0, repeats_bodies=True, **slow)
        unshaped = _overhead_row(**of, policy="unshaped", **slow)
        found = overhead().find([*blind, made, unshaped])
        assert list(found.claims.values()) == [is_so, is_so]


@pytest.mark.parametrize("what", ["a figure", "a folder", "Pillow", "tc", "an overhead", "subscribers", "seconds"])
def test_bad_input_is_one_sentence_before_anything_is_started(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """An unknown figure, a folder that cannot be written to, a machine without Pillow: exit code 2."""
    monkeypatch.setattr(subprocess, "Popen", None)
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    arguments = ["icu-battery", "--quick", "--out", str(tmp_path / "out")]
    if what == "a figure":
        arguments[0] = "icu-figure-9"
    elif what == "a folder":
        arguments[-1] = str(file / "below")
    elif what == "tc":
        monkeypatch.setattr("whimbrel.lab.sublim.icu_bandwidth.why_not_shaped", lambda: "not permitted")
        arguments = ["icu-bandwidth", "--link", "tc", *arguments[1:]]
    elif what in {"an overhead", "subscribers", "seconds"}:
        wrong = {"an overhead": ["--figure", "9"], "subscribers": ["--subscribers", "7"], "seconds": ["--seconds", "0"]}
        arguments = ["icu-overhead", *wrong[what], *arguments[1:]]
    else:
        monkeypatch.setattr("whimbrel.lab.sublim.icu_battery.find_spec", lambda _: None)
    assert lab(monkeypatch, *arguments) == 2
    said = capsys.readouterr().err
    expected = {
        "a figure": "icu-figure-9",
        "a folder": "--out",
        "Pillow": "whimbrel[images]",
        "tc": "tc: not permitted",
        "an overhead": "5, 8a, 8b, saturated, account, all",
        "subscribers": "20, 60, 100, 140, 180, 200, 220",
        "seconds": "--seconds",
    }
    assert expected[what] in said
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()


# -- points in processes of their own ----------------------------------------------------------------------------------

MADE_UP = """
import os
import signal
import subprocess


def row(**settings):
    return {**settings, "process": os.getpid(), "core_s": 0.0}


def failing():
    raise ValueError("no such heart")


def interrupting(parent):
    child = subprocess.Popen(["sleep", "1000"])
    with open(os.environ["CHILD_FILE"], "w") as file:
        file.write(str(child.pid))
    os.kill(parent, signal.SIGINT)
    signal.pause()
"""


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a module that makes points, which other processes can load, too."""
    (tmp_path / "made_up_points.py").write_text(MADE_UP, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "made_up_points"


def test_each_point_has_a_process_of_its_own_and_is_made_once(tmp_path: Path, made_up: str) -> None:
    """Rows come in the order of the points; the same point twice is one."""
    points = [OwnPoint(make=f"{made_up}:row", settings={"number": number}) for number in (1, 2, 1)]
    told: list[tuple[int, int]] = []
    rows = make_points(points, tmp_path, processes=2, on_progress=lambda done, all_: told.append((done, all_)))
    assert [each["number"] for each in rows] == [1, 2, 1]
    assert len({each["process"] for each in rows} - {os.getpid()}) == 2
    assert told[-1] == (2, 2)
    assert make_points(points, tmp_path, processes=2) == rows


def test_a_point_that_fails_says_why_and_the_others_are_kept(tmp_path: Path, made_up: str) -> None:
    """The next run makes what is missing."""
    points = [OwnPoint(make=f"{made_up}:row"), OwnPoint(make=f"{made_up}:failing")]
    with pytest.raises(FailedPointError, match="no such heart"):
        make_points(points, tmp_path)
    assert [path.stem for path in tmp_path.glob("*.json")] == [points[0].key]


def test_an_interrupt_keeps_the_points_that_are_done(
    tmp_path: Path, made_up: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And ends those that run, with the brokers and doctors that they started."""
    started: list[subprocess.Popen[bytes]] = []
    begin = subprocess.Popen

    def noted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(begin(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    monkeypatch.setenv("CHILD_FILE", str(tmp_path / "child"))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    points = [
        OwnPoint(make=f"{made_up}:row"),
        OwnPoint(make=f"{made_up}:interrupting", settings={"parent": os.getpid()}),
        OwnPoint(make=f"{made_up}:row", settings={"number": 3}),
    ]
    try:
        with pytest.raises(KeyboardInterrupt):
            make_points(points, tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert [path.stem for path in tmp_path.glob("*.json")] == [points[0].key]
    assert [each.poll() is not None for each in started] == [True, True]
    child = Path(f"/proc/{(tmp_path / 'child').read_text(encoding='utf-8')}/stat")
    until_s = time.monotonic() + 60
    while child.exists() and " Z " not in child.read_text(encoding="utf-8"):
        assert time.monotonic() < until_s, "what a point started lives on"
        time.sleep(0.05)


def test_another_source_is_another_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made by other code is not taken for a result of this one."""
    point = OwnPoint(make="a:b")
    key = point.key
    monkeypatch.setattr(own_processes, "_source_digest", lambda _: "other")
    assert point.key != key
