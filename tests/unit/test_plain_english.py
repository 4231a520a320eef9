"""The checker of our English finds what it names, leaves plain sentences alone, and its baseline only falls."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"

FOUND = {
    "begins-what": ('"""What a batch was."""', '"""Summary of a batch."""'),
    "returns-what": ('"""Return what was read."""', '"""Return the rows that were read."""'),
    "what-as-subject": ('"""A row. What is held is counted."""', '"""A row. Held messages are counted."""'),
    "tell-whether": ('"""Tell whether it is open now."""', '"""Return whether it is open now."""'),
    "let-have-be": ('"""Let nothing be kept any more."""', '"""Remove the registration of a reader."""'),
    "take-in": ('"""Take in what comes next."""', '"""Apply the next fact."""'),
    "fronted": ('"""Of one string only a part."""', '"""A part of one string."""'),
    "continued": ('"""and where it was seen last."""', '"""Place where it was seen last."""'),
    "keyed-by": ('"""By node, the last seq."""', '"""Last seq per node."""'),
    "is-no": ('"""These bytes are no message."""', '"""These bytes are not a message."""'),
    "asked-said": ('"""The default if it is not said."""', '"""The default value, 120."""'),
    "number-for-seq": ('"""The last number of the log."""', '"""The last seq of the log."""'),
    "one-a-line": ('"""Print them, one a line."""', '"""Print them, one per line."""'),
    "old-words": ('"""Start the stream anew here."""', '"""Restart the stream here."""'),
    "metaphor": ('"""Judge the rows of a batch."""', '"""Check the rows of a batch."""'),
}


def _found(path: Path) -> set[str]:
    ended = subprocess.run(
        [sys.executable, str(TOOLS / "plain_english.py"), str(path), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {hit["rule"] for hit in json.loads(ended.stdout)["hits"]}


def test_each_kind_is_found_and_its_rewrite_is_not(tmp_path: Path) -> None:
    """A rule that finds nothing would let everything pass."""
    for rule, (bad, good) in FOUND.items():
        for name, text in (("bad", bad), ("good", good)):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{rule.replace('-', '_')}.py").write_text(f"def run() -> None:\n    {text}\n")
    for rule in FOUND:
        assert rule in _found(tmp_path / "bad" / f"{rule.replace('-', '_')}.py"), rule
    assert _found(tmp_path / "good") == set()


def test_a_name_without_a_verb_and_a_long_sentence_are_found(tmp_path: Path) -> None:
    """Names and pages are read before docstrings."""
    (tmp_path / "names.py").write_text('def opened() -> None:\n    """Open the door now."""\n')
    (tmp_path / "page.md").write_text("A " + "word " * 36 + "ends here.\n")
    assert _found(tmp_path) == {"participle-name", "long-sentence"}


@pytest.mark.parametrize(("docstring", "status"), [("Return the rows of a file.", 0), ("Return what a file has.", 1)])
def test_a_baseline_only_falls(tmp_path: Path, docstring: str, status: int) -> None:
    """New text adds no hit, and no update may raise a count."""
    baseline = tmp_path / "baseline.json"
    baseline.write_text("{}")
    (tmp_path / "module.py").write_text(f'def read() -> None:\n    """{docstring}"""\n')
    command = [sys.executable, str(TOOLS / "plain_english.py"), str(tmp_path), "--baseline", str(baseline), "--update"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == status
    assert json.loads(baseline.read_text()) == {}


def test_a_commit_of_prose_alone_is_told_from_one_of_code(tmp_path: Path) -> None:
    """Sentences are rewritten by the hundred; none of these commits may change what runs."""

    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    def status() -> int:
        command = [sys.executable, str(TOOLS / "same_code.py")]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode

    module = tmp_path / "module.py"
    git("init", "-q")
    for text in ('"""Old."""\nx = 1  # one\n', '"""New."""\nx = 1  # the first\n', '"""New."""\nx = 2\n'):
        module.write_text(text)
        git("add", ".")
        git("commit", "-qm", "change")
        if "Old" not in text:
            assert status() == int("x = 2" in text)
