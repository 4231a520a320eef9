"""SUBLIM's figures made again: a battery's life, each point in a process of its own; quick forms."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from whimbrel.cli.main import main
from whimbrel.lab import own_processes
from whimbrel.lab.own_processes import FailedPointError, OwnPoint, make_points
from whimbrel.lab.sublim.icu_bandwidth import bandwidth
from whimbrel.lab.sublim.icu_battery import battery


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
    }
    stateless = {**row, "policy": "stateless", "in_time": 20, "series": []}
    for series, in_time, is_so in (([good, bad, small], 36, True), ([good, small, bad], 34, False)):
        found = bandwidth(is_quick=True).find(
            [stateless, {**row, "policy": "stateful", "in_time": in_time, "series": series}]
        )
        assert list(found.claims.values()) == [True, is_so, is_so]
        assert found.tables[0].rows[0] == ("120, 5 s", "50%", "90%", "90%", "20%", f"{in_time}%", f"+{in_time - 20}")


@pytest.mark.parametrize("what", ["a figure", "a folder", "Pillow", "tc"])
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
    else:
        monkeypatch.setattr("whimbrel.lab.sublim.icu_battery.find_spec", lambda _: None)
    assert lab(monkeypatch, *arguments) == 2
    said = capsys.readouterr().err
    expected = {
        "a figure": "icu-figure-9",
        "a folder": "--out",
        "Pillow": "whimbrel[images]",
        "tc": "tc: not permitted",
    }
    assert expected[what] in said
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()


# -- points in processes of their own ----------------------------------------------------------------------------------

MADE_UP = """
import os
import signal
import signal


def row(**settings):
    return {**settings, "process": os.getpid(), "core_s": 0.0}


def failing():
    raise ValueError("no such heart")


def interrupting(parent):
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
    """And ends those that run."""
    started: list[subprocess.Popen[bytes]] = []
    begin = subprocess.Popen

    def noted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(begin(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
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


def test_another_source_is_another_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made by other code is not taken for a result of this one."""
    point = OwnPoint(make="a:b")
    key = point.key
    monkeypatch.setattr(own_processes, "_source_digest", lambda: "other")
    assert point.key != key
