"""The command line is the contract others script against: outputs, exit codes, and messages for bad input."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from whimbrel.cli.demo.summary import Summary
from whimbrel.cli.main import main
from whimbrel.pipeline.accounts import Account
from whimbrel.sim.witnesses import Spoken


@dataclass(frozen=True)
class Done:
    """What a finished command left behind."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``whimbrel`` in this process, through its real entry point."""

    def invoke(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["whimbrel", *arguments])
        monkeypatch.setenv("COLUMNS", "100")
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            main()
        captured = capsys.readouterr()
        return Done(int(exited.value.code or 0), captured.out, captured.err)

    return invoke


def _vectors(folder: Path, *lines: object) -> str:
    path = folder / "vectors.jsonl"
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines), encoding="utf-8")
    return str(path)


GOOD = {"expr": "a > 5", "attrs": {"a": {"t": "int32", "v": 7}}, "expect": "true"}
WRONG = {"expr": "a > 5", "attrs": {"a": {"t": "int32", "v": 3}}, "expect": "true"}
BROKEN = {"expr": "a >", "attrs": {}, "expect": "error", "note": "left alone"}


def test_check_counts_what_passed(run: Run, tmp_path: Path) -> None:
    """The last line is for people and for scripts."""
    done = run("filter", "check", _vectors(tmp_path, GOOD, BROKEN, "", GOOD))
    assert (done.code, done.out) == (0, "3 passed, 0 failed\n")


def test_check_names_each_failure_and_exits_with_one(run: Run, tmp_path: Path) -> None:
    """A failure is shown with what was expected and what came."""
    done = run("filter", "check", _vectors(tmp_path, GOOD, WRONG))
    assert done.code == 1
    assert done.out == "line 2: a > 5\n  expected true, got false\n1 passed, 1 failed\n"


def test_check_as_json_is_one_object(run: Run, tmp_path: Path) -> None:
    """Its keys are the contract."""
    done = run("filter", "check", _vectors(tmp_path, WRONG), "--json")
    failure = {"line": 1, "expr": "a > 5", "expect": "true", "got": "false"}
    assert done.code == 1
    assert json.loads(done.out) == {"passed": 0, "failed": 1, "failures": [failure]}


def test_an_empty_file_of_vectors_passes(run: Run, tmp_path: Path) -> None:
    """Nothing to check is nothing wrong."""
    assert run("filter", "check", _vectors(tmp_path)).out == "0 passed, 0 failed\n"


@pytest.mark.parametrize(
    ("line", "place", "words"),
    [
        ('{"expr": "a > 5", oops}', "line 2, column 19", "name"),
        ("[1, 2]", "line 2, column 1", "an object"),
        ('{"attrs": {}, "expect": "true"}', "line 2, column 1", "expr: found nothing"),
        ('{"expr": "a>5", "attrs": {}, "expect": "maybe"}', "line 2, column 30", "true, false, undefined, error"),
        ('{"expr": "a>5", "attrs": 7, "expect": "true"}', "line 2, column 17", "attrs: found 7"),
        (
            '{"expr": "a>5", "attrs": {"a": {"t": "int8", "v": 1}}, "expect": "true"}',
            "line 2, column 27",
            "int32, int64",
        ),
        (
            '{"expr": "a>5", "attrs": {"a": {"t": "int32", "v": 3e9}}, "expect": "true"}',
            "line 2, column 27",
            "an integer",
        ),
        ("\x00", "line 2, column 1", "Expecting value"),
        ('{"a": "' + "[" * 99 + '"', "line 2, column", "delimiter"),
        ('{"a":' * 99, "line 2, column", "deep"),
    ],
)
def test_a_bad_line_is_named_by_line_and_column(run: Run, tmp_path: Path, line: str, place: str, words: str) -> None:
    """Whoever made the file must find the place."""
    done = run("filter", "check", _vectors(tmp_path, GOOD, line))
    assert done.code == 2
    assert place in done.err
    assert words in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


def test_bytes_that_are_no_text_are_named(run: Run, tmp_path: Path) -> None:
    """A picture is not a file of vectors."""
    path = tmp_path / "picture"
    path.write_bytes(b"\x89PNG\xff\xfe\n")
    done = run("filter", "check", str(path))
    assert (done.code, "line 1, column 1" in done.err, "UTF-8" in done.err) == (2, True, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["filter", "check", "no-such-file"], "no-such-file: No such file"),
        (["filter", "check", "."], ".: Is a directory"),
        (["filter", "check", "x", "--backend", "quantum"], "found 'quantum', allowed is python"),
        (["filter", "test", "a == 1"], "--attributes"),
        (["filter", "test", "a == 1", "-a", "{"], "line 1, column 2"),
        (["filter", "test", "a == 1", "-a", "7"], "found a number on top, allowed is an object"),
        (["filter", "test", "a = 1", "-a", "{}"], "line 1, column 3"),
        (["filter", "explain", "a = 1"], "error 2102 at line 1, column 3: = is not an operator; to compare, write =="),
        (["filter", "explain"], "EXPR"),
        (["filter", "frobnicate"], "frobnicate"),
        (["--frobnicate"], "--frobnicate"),
        (["demo", "--seconds", "soon"], "soon"),
    ],
)
def test_bad_input_is_one_clear_message_and_exit_code_two(run: Run, arguments: list[str], words: str) -> None:
    """Never a traceback."""
    done = run(*arguments)
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err


def test_an_error_in_a_filter_points_at_its_place(run: Run) -> None:
    """The caret stands under the text."""
    assert run("filter", "explain", "a == 1 && b = 2").err.splitlines()[1:] == ["  a == 1 && b = 2", " " * 14 + "^"]


@pytest.mark.parametrize(
    ("attributes", "verdict"),
    [('{"a": 7}', "true"), ('{"a": 3}', "false"), ("{}", "undefined"), ('{"a": "7"}', "undefined")],
)
def test_test_prints_the_verdict_first(run: Run, attributes: str, verdict: str) -> None:
    """The first word is the answer; the rest is why."""
    done = run("filter", "test", "a > 5", "--attributes", attributes)
    assert (done.code, done.out.split()[0]) == (0, verdict)
    assert json.loads(run("filter", "test", "a > 5", "-a", attributes, "--json").out)["verdict"] == verdict
    assert run("filter", "test", "a > 5", "-a", attributes, "--exit-code").code == (0 if verdict == "true" else 1)


def test_test_shows_what_each_part_saw(run: Run) -> None:
    """Why, not only what."""
    out = run("filter", "test", "a > 5 && contains(b.c, '[x]')", "-a", '{"a": 7, "b": {"c": "a[x]"}}').out
    assert "a > 5  (a is 7)" in out
    assert "contains(b.c, '[x]')  (b.c is 'a[x]')" in out


def test_explain_shows_tree_types_normal_form_and_needs(run: Run) -> None:
    """Everything the parser understood, for people."""
    out = run("filter", "explain", "!(a > 5 || b == 'x')").out
    for words in (
        "Compare >",
        "Literal 5  (an integer)",
        "a <= 5 && b != 'x'",
        "a: required; as int32",
        "b: required; as string",
    ):
        assert words in out


def test_explain_as_json_is_one_object(run: Run) -> None:
    """Everything the parser understood, for programs."""
    shown = json.loads(run("filter", "explain", "a > 5 || require(b)", "--json").out)
    assert set(shown) == {"filter", "tree", "normal_form", "needs"}
    assert shown["needs"][0] == {"name": "a", "required": False, "types": ["int32", "int64", "real64"]}


def test_the_demo_says_what_it_needs_before_anything_starts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence with the remedy; no broker is left behind by a demo that could not be."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    done = run("demo", "--seconds", "1")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: the demo needs Java 17 or newer, which was not found here; install it, or set")
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert "error: the demo needs pyspark, which was not found here; run: pip install" in run("demo").err


def test_the_demo_keeps_nothing_among_other_things(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of another day would be in its account."""
    monkeypatch.setattr("whimbrel.cli.demo.command._check_spark", lambda: None)
    (tmp_path / "something").touch()
    done = run("demo", "--keep", str(tmp_path))
    assert (done.code, "allowed is a directory that is empty, or not there yet" in done.err) == (2, True)


@pytest.mark.parametrize(("gap_count", "code"), [(0, 0), (1, 1)])
def test_the_demo_fails_if_its_account_does_not_close(
    run: Run, monkeypatch: pytest.MonkeyPatch, gap_count: int, code: int
) -> None:
    """Whoever runs it in a script learns it from the exit code; --json is one object."""
    account = Account(notifications=0, wanted=0, devices=(), gap_count=gap_count, gaps=("a gap",) * gap_count)
    spoken = Spoken(acknowledged=0, once=0, lost=0, in_doubt=0, arrived=0, in_log=0)

    async def made(*_: object, **__: object) -> Summary:
        return Summary(account=account, spoken=spoken, received=(), gap_count=0, gaps=())

    monkeypatch.setattr("whimbrel.cli.demo.command._check_spark", lambda: None)
    monkeypatch.setattr("whimbrel.cli.demo.command._run", made)
    done = run("demo", "--json")
    assert (done.code, json.loads(done.out)["closes"]) == (code, code == 0)
    done = run("demo")
    assert (done.code, "Nothing lost: all 0 deliveries" in done.out) == (code, code == 0)


def test_version_and_help(run: Run) -> None:
    """The two things everybody tries first."""
    assert run("--version").out.startswith("whimbrel ")
    assert "explain" in run("filter", "--help").out


# -- match -----------------------------------------------------------------------------------------------------------


def _lines(path: Path, *lines: object) -> str:
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines), encoding="utf-8")
    return str(path)


SUBSCRIPTIONS = [
    {"id": "hot", "filter": "temperature > 38.5"},
    {"id": "ward", "filter": "temperature > 0", "subject": "ward/#"},
    {"id": "all", "filter": None},
]
EVENTS = [
    {"attributes": {"temperature": 39}, "subject": "ward/3"},
    {"attributes": {"room": {"temperature": 1}}},
    {"attributes": {"temperature": 39.5}},
]


def test_match_prints_who_wants_what(run: Run, tmp_path: Path) -> None:
    """The line number of the event, and the ids."""
    files = _lines(tmp_path / "s", *SUBSCRIPTIONS), _lines(tmp_path / "e", *EVENTS)
    done = run("match", "--subscriptions", files[0], "--events", files[1])
    assert (done.code, done.out) == (0, "1: all hot ward\n2: all\n3: all hot\n")
    as_json = run("match", "-s", files[0], "-e", files[1], "--json").out.splitlines()
    assert json.loads(as_json[0]) == {"event": 1, "ids": ["all", "hot", "ward"]}


def test_match_counts_and_measures(run: Run, tmp_path: Path) -> None:
    """Its keys are the contract."""
    files = _lines(tmp_path / "s", *SUBSCRIPTIONS), _lines(tmp_path / "e", *EVENTS)
    counted = json.loads(run("match", "-s", files[0], "-e", files[1], "--count", "--json").out)
    assert list(counted) == ["subscriptions", "events", "matches", "build_s", "us_per_event", "resident_mb"]
    assert (counted["subscriptions"], counted["events"], counted["matches"]) == (3, 3, 6)
    assert "3 subscriptions, 3 events, 6 matches" in run("match", "-s", files[0], "-e", files[1], "--count").out


@pytest.mark.parametrize(
    ("subscription", "event", "words"),
    [
        ({"id": "x", "filter": "a = 1"}, {}, "s: line 2, column 3: in its filter, error 2102"),
        ({"id": 7, "filter": "a == 1"}, {}, "s: line 2, column 1: id: found 7"),
        ({"id": "hot", "filter": "a == 1"}, {}, "s: line 2, column 1: subscription id: found 'hot'"),
        ({"id": "x", "filter": 7}, {}, "s: line 2, column 1: filter: found 7"),
        ({"id": "x", "filter": "a == 1", "subject": "a/#/b"}, {}, "s: line 2, column 1"),
        ("{", {}, "s: line 2, column 2"),
        ({"id": "x"}, {"attributes": 7}, "e: line 1, column 1: attributes: found 7"),
        ({"id": "x"}, {"attributes": {"a": 1}, "subject": 7}, "e: line 1, column 1: subject: found 7"),
        ({"id": "x"}, "nonsense", "e: line 1, column 1"),
    ],
)
def test_match_names_the_bad_line(run: Run, tmp_path: Path, subscription: object, event: object, words: str) -> None:
    """A million lines, one of them wrong."""
    files = _lines(tmp_path / "s", SUBSCRIPTIONS[0], subscription), _lines(tmp_path / "e", event)
    done = run("match", "-s", files[0], "-e", files[1])
    assert (done.code, words in done.err) == (2, True), done.err


def test_near_says_why_a_notification_is_heard(run: Run) -> None:
    """Each of the three conditions, with the distance that decided it."""
    there = ("near", "explain", "--place", "52.52,13.405", "--radius", "150", "--near", "200")
    heard = run(*there, "--at", "52.521,13.405", "--at", "52.52,13.405@300")
    assert (heard.code, heard.err) == (0, "")
    assert heard.out.splitlines() == [
        "heard",
        "  yes  inside the publication's area: 111.28 m from its centre, radius 150 m",
        "  yes  the subscription names no circle or polygon",
        "  yes  111.28 m from the session, near allows 200 m",
        "places of the session: 1 fresh, 1 stale",
    ]
    missed = run(*there, "--at", "52.521,13.405@121", "--exit-code", "--json")
    assert missed.code == 1
    told = json.loads(missed.out)
    assert (told["heard"], told["stale"], told["places"]) == (False, 1, [])
    assert [each["is_met"] for each in told["conditions"]] == [False, True, False]
    assert run(*there, "--at", "52.521,13.405@121", "--stale", "300").out.startswith("heard\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--place", "91,0"], "latitude: found 91.0, allowed is a number from -90 to 90"),
        (["--radius", "5"], "radius: found 5.0, allowed is none without a place"),
        (["--place", "0,0", "--radius", "20037508"], "a number from 0 to 1000000"),
        (["--near", "0,0;2,2;0,2;2,0"], "edges from corners 1 and 3 that cross or touch"),
    ],
)
def test_near_refuses_what_is_no_place(run: Run, arguments: list[str], message: str) -> None:
    """What was found, and what is allowed."""
    done = run("near", "explain", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
