"""``whimbrel policy``: outputs, exit codes, and messages for bad input."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from whimbrel.cli.main import main

Run = Callable[..., tuple[int, str, str]]
EXAMPLES = Path(__file__).parents[2] / "examples" / "policies"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``whimbrel policy`` in this process, through its real entry point."""

    def invoke(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["whimbrel", "policy", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            main()
        return int(exited.value.code or 0), *capsys.readouterr()

    return invoke


@pytest.fixture
def policy(tmp_path: Path) -> Callable[[str], str]:
    """Write a policy into a file; return its path."""

    def write(text: str) -> str:
        path = tmp_path / "a.policy"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_check_names_what_each_file_costs_and_fails_if_any_is_none(run: Run, policy: Callable[[str], str]) -> None:
    """For CI: all files are looked at, and the exit code says whether all are fine."""
    good = str(EXAMPLES / "stock.policy")
    assert run("check", good)[:2] == (0, f"{good}: at most 36 steps, 4194304 bytes, 0 pixels\n")
    code, out, _ = run("check", policy("return m"), good)
    assert code == 1
    assert "error 2201 at line 1, column 9: found the end, expected an operator or ';'" in out
    assert out.endswith("0 pixels\n")


def test_check_reads_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As every command that reads a file does."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"return m;")))
    assert run("check", "-")[:2] == (0, "standard input: at most 2 steps, 0 bytes, 0 pixels\n")


def test_explain_as_json_is_one_object(run: Run) -> None:
    """What a deployment wants to know before it accepts one."""
    code, out, _ = run("explain", str(EXAMPLES / "icu_printed.policy"), "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown["cost"]["steps"] == {"most": 82, "allowed": 5_000}
    assert shown["variables set"] == ["Timestamp"]
    assert shown["needs images"] is True


def test_test_shrinks_a_picture_and_keeps_it(run: Run, tmp_path: Path) -> None:
    """The whole way offline: report, picture, policy, smaller picture."""
    ecg, small = tmp_path / "ecg.jpg", tmp_path / "small.jpg"
    Image.effect_noise((400, 300), 30).save(ecg, quality=90)
    report = '{"battery": 0.5, "display": {"width": 100, "height": 100}, "responsible": ["p1"], "received": 9}'
    options = ["--body", str(ecg), "--report", report, "--sent", "10", "--out", str(small), "--json"]
    code, out, _ = run("test", str(EXAMPLES / "icu.policy"), "-a", '{"pulse": 70, "patientID": "p1"}', *options)
    shown = json.loads(out)
    assert (code, shown["outcome"]) == (0, "delivered")
    assert shown["cost"]["pixels"] == 400 * 300
    assert shown["body_bytes"] == small.stat().st_size < ecg.stat().st_size
    with Image.open(small) as image:
        assert image.size == (100, 75)


def test_what_fails_is_withheld_with_its_reason(run: Run, policy: Callable[[str], str], tmp_path: Path) -> None:
    """And a script can ask for the exit code."""
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff\xe0 no picture")
    path = policy("return compress(m, 0.1, 1, 1);")
    code, out, _ = run("test", path, "--body", str(broken), "--exit-code")
    assert code == 1
    assert out.startswith("withheld: the body begins as an image or JSON and is none\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["test", "-a", "{"], "line 1, column 2"),
        (["test", "--report", '{"battery": 7}'], "battery: found 7, allowed is a number from 0 to 1"),
        (["test", "--state", "[]"], "found an array on top"),
        (["test", "--now", "soon"], "soon"),
        (["test", "--body", "no-such-file"], "no-such-file: No such file"),
        (["test", "--sent", "-1"], "greater than or equal to 0"),
    ],
)
def test_bad_input_is_one_clear_message(
    run: Run, policy: Callable[[str], str], arguments: list[str], words: str
) -> None:
    """Never a traceback."""
    code, _, err = run(*arguments, policy("return m;"))
    assert code == 2
    assert words in err
    assert "Traceback" not in err


def test_a_file_that_is_no_text_or_no_policy_is_named(run: Run, tmp_path: Path, policy: Callable[[str], str]) -> None:
    """With the place where it is known."""
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    assert "allowed is text in UTF-8" in run("check", str(binary))[2]
    code, _, err = run("explain", policy("return 5;"))
    assert code == 2
    assert err.splitlines()[-1] == " " * 9 + "^"


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("if (m.pulse > 50) { return NULL; }", ["line 1, column 5: m.pulse"]),
        ("p = m.pulse;\nif (50 < p) { return NULL; }", ["line 2, column 5: p"]),
        ("if (equals(m['two words'], 1, 2)) { return NULL; }", ["line 1, column 5: m['two words']"]),
        ("if (m.price < device.Battery) { return NULL; }", ["line 1, column 5: m.price"]),
        ("if (to-int(m.pulse) > 50 or m.name == 'x' or state.n > 3 or m.a == m.b) { return NULL; }", []),
    ],
)
def test_explain_warns_where_a_number_is_compared_with_what_may_be_a_string(
    run: Run, tmp_path: Path, text: str, places: list[str]
) -> None:
    """A user property always is one: the comparison is undefined, and the else is taken."""
    (tmp_path / "p.policy").write_text(text)
    _, out, _ = run("explain", str(tmp_path / "p.policy"))
    told = [line.partition(" is a string")[0] for line in out.splitlines() if line.startswith("warning")]
    assert told == [f"warning at {place}" for place in places]
    _, out, _ = run("explain", str(tmp_path / "p.policy"), "--json")
    assert len(json.loads(out)["warnings"]) == len(places)
