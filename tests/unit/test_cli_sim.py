"""``whimbrel sim``: what others script against, and what a slip in a number or a file is answered with."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.progress import Progress

from whimbrel.cli.main import main
from whimbrel.log.reader import LogReader

Run = Callable[..., tuple[int, str, str]]
SMALL = ("--nodes", "12", "--area", "150", "--range", "25", "--seconds", "4000")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process; return its exit code and what it said."""

    def invoke(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["whimbrel", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            main()
        said = capsys.readouterr()
        return int(exited.value.code or 0), said.out, said.err

    return invoke


def test_contacts_as_json(run: Run) -> None:
    """The keys are those that scripts read; the same seed gives the same."""
    keys = "contacts contact_rate_s contact_mean_s intercontact_mean_s meeting_time_s sim_s_per_wall_s".split()
    one, other = (json.loads(run("sim", "contacts", *SMALL, "--json")[1]) for _ in range(2))
    assert list(one) == keys
    assert one["contacts"] > 100
    assert [one[key] for key in keys[:-1]] == [other[key] for key in keys[:-1]]


def test_the_same_seed_gives_the_same_bytes(run: Run, tmp_path: Path) -> None:
    """Contacts and positions as files, and every figure but the speed."""
    made = []
    for number in range(2):
        trace, rows = tmp_path / f"{number}.trace", tmp_path / f"{number}.jsonl"
        run("sim", "contacts", *SMALL, "--seed", "7", "--write", str(trace), "--positions", str(rows))
        campus = json.loads(run("sim", "campus", *SMALL, "--seed", "7", "--topics", "6", "--json")[1])
        unicast = json.loads(run("sim", "unicast", *SMALL, "--seed", "7", "--json")[1])
        figures = [
            {key: value for key, value in each.items() if key != "sim_s_per_wall_s"} for each in (campus, unicast)
        ]
        made.append((trace.read_bytes(), rows.read_bytes(), figures))
    assert made[0] == made[1]


def test_campus_says_what_came_and_what_was_assumed(run: Run) -> None:
    """A figure without its assumptions is worth nothing."""
    options = ("--memory", "3", "--topics", "6", "--interval", "300", "--popularity", "zipf:0.8", "--hello", "5s")
    code, out, _ = run("sim", "campus", *SMALL, *options, "--json")
    found = json.loads(out)
    assert code == 0
    assert 0 < found["delay_p50_s"] <= found["delay_mean_s"] <= found["delay_p95_s"]
    assert found["delivered"] + found["never_retrieved"] > 0
    assert found["memory_used"] == pytest.approx(0.8, abs=0.03)
    assert (found["assumptions"]["zipf_exponent"], found["assumptions"]["hello_s"]) == (0.8, 5.0)
    text = run("sim", "campus", *SMALL, *options)[1]
    assert "assumed: topics 6, memory 3" in text


def test_a_terminal_is_shown_how_far_it_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the error output only, so that --json stays one object."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # what makes rich take a pipe for a terminal
    monkeypatch.setattr("whimbrel.sim.campus.fast._CHUNK", 500)
    told: list[float] = []
    monkeypatch.setattr(Progress, "update", lambda _self, _task, *, completed: told.append(completed))
    code, out, err = run("sim", "campus", *SMALL, "--topics", "6", "--json")
    assert (code, json.loads(out)["created"] >= 0) == (0, True)
    assert "Preparing" in err
    assert "Simulating" in err
    assert len(told) > 2
    assert 0 < told[0] < told[-1] <= 1


def test_unicast_uses_the_words_of_the_one(run: Run) -> None:
    """Direct delivery is slower than spraying, and that than an epidemic."""
    delay = {}
    for copies in ("1", "4", "0"):
        found = json.loads(run("sim", "unicast", *SMALL, "--copies", copies, "--json")[1])
        assert found["relayed"] >= found["delivered"] > 0
        delay[copies] = found["latency_avg"]
    assert delay["0"] < delay["4"] < delay["1"]


def test_a_world_becomes_a_trace_and_a_log(run: Run, tmp_path: Path) -> None:
    """Contacts go out in the ONE's format and come in again; positions are imported as reports."""
    trace, rows = tmp_path / "walk.trace", tmp_path / "walk.jsonl"
    small = ("--nodes", "4", "--area", "60", "--range", "20", "--seconds", "500", "--positions-every", "5")
    written = run("sim", "contacts", *small, "--write", str(trace), "--positions", str(rows), "--json")[1]
    read = run("sim", "contacts", "--trace", str(trace), "--json")[1]
    assert json.loads(read)["contacts"] == json.loads(written)["contacts"]
    recorded = run("sim", "contacts", "--walks", str(rows), "--range", "20", "--json")[1]
    assert json.loads(recorded)["contact_mean_s"] == pytest.approx(json.loads(written)["contact_mean_s"], rel=0.1)
    assert run("log", "import", str(tmp_path / "log"), str(rows), "--node", "walk")[0] == 0
    tables = [table for table, _ in LogReader(tmp_path / "log", "walk").rows()]
    assert tables == ["reports"] * 4 * 101


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("campus", "--workload", "0.05"), "topics: found 100, allowed is at most 50"),
        (("contacts", "--area", "40"), "area_m: found 40.0, allowed is at least the radio range of 50 m"),
        (("campus", "--popularity", "zips:1"), "--popularity: found 'zips:1'"),
        (("campus", "--hello", "often"), "--hello: found 'often', allowed is change, or a period such as 90s or 15m"),
        (("campus", "--allocation", "fair"), "--allocation: found 'fair', allowed is sqrt or flat"),
        (("contacts", "--nodes", "1"), "nodes: found 1"),
        (
            ("campus", "--warmup", "nan"),
            "'nan' is no duration: write a number of seconds, or one with ms, s, m, h or d",
        ),
        (("campus", "--warmup", "-5"), "'-5' is no duration"),
        (("contacts", "--seconds", "1e9"), "contacts or legs to be expected: found"),
        (("unicast", "--trace", "nowhere.trace"), "nowhere.trace: No such file or directory"),
        (("contacts", "--trace", "a", "--walks", "b"), "--trace and --walks exclude each other"),
        (("contacts", "--positions", "f", "--positions-every", "0"), "--positions-every: found 0.0"),
    ],
)
def test_a_slip_is_answered_with_what_is_allowed(run: Run, options: tuple[str, ...], reason: str) -> None:
    """Exit code 2, one sentence, and nothing computed before."""
    code, out, err = run("sim", *options)
    assert (code, out) == (2, "")
    assert reason in err


def test_a_bad_line_of_a_trace_is_named(run: Run, tmp_path: Path) -> None:
    """File, line, reason."""
    file = tmp_path / "bad.trace"
    file.write_text("1 CONN 1 2 up\n2 CONN 2 3 down\n")
    for command in ("contacts", "campus", "unicast"):
        code, _, err = run("sim", command, "--trace", str(file))
        assert (code, err) == (2, f"error: {file}: line 2, column 1: found 2 3 down, which was not up\n")
