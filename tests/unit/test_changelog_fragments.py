"""Fragments of the changelog: the checker names each broken rule, and a release gets every sentence once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPEN = (
    "# Changelog\n\nNewest first.\n\n## 0.1.0 – not released yet\n\n"
    "### Breaking changes\n\n- One.\n\n### Broker\n\n- Two.\n"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with a changelog and two fragments."""
    (tmp_path / "changes").mkdir()
    (tmp_path / "CHANGELOG.md").write_text(OPEN, encoding="utf-8")
    _write(tmp_path, "log.fixed.md", "`whimbrel log show` prints the last record.\n")
    _write(tmp_path, "wire.breaking.md", "A malformed topic closes the connection.\n")
    _write(tmp_path, "README.md", "how to write them")
    return tmp_path


def _write(root: Path, name: str, text: str) -> None:
    (root / "changes" / name).write_text(text, encoding="utf-8")


def _run(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "changelog.py"), "--root", str(root), *words]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False)


def test_our_own_fragments_are_well_formed() -> None:
    """`make lint` would refuse them later."""
    ended = _run(ROOT, "--check")
    assert ended.returncode == 0, ended.stderr


def test_fragments_are_printed_by_kind(root: Path) -> None:
    """Users read first what they must act on."""
    ended = _run(root)
    assert ended.stdout == (
        "### Breaking changes\n\n- A malformed topic closes the connection.\n\n"
        "### Fixed\n\n- `whimbrel log show` prints the last record.\n"
    )
    assert _run(root, "--check").stdout == "2 fragments are well formed\n"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("log.improved.md", "A sentence.\n", "the name is not TOPIC.KIND.md with a KIND of breaking, security"),
        ("Log.fixed.md", "A sentence.\n", "the name is not TOPIC.KIND.md"),
        ("log.fixed.txt", "A sentence.\n", "the name is not TOPIC.KIND.md"),
        ("a.fixed.md", "", "allowed is one line with one sentence"),
        ("a.fixed.md", "One line.\nAnother line.\n", "allowed is one line with one sentence"),
        ("a.fixed.md", "One sentence. And another.\n", "allowed is one sentence, which ends with a full stop"),
        ("a.fixed.md", "No end\n", "allowed is one sentence, which ends with a full stop"),
        ("a.fixed.md", "- A bullet.\n", "without a bullet"),
        ("a.fixed.md", "lower case.\n", "begins with a capital letter or code"),
        ("a.fixed.md", "Word " * 36 + "end.\n", "found 37 words, allowed are 35"),
        ("a.fixed.md", "A text that is no filter ends the connection.\n", "is-no: A text that is no filter"),
    ],
)
def test_a_broken_rule_is_named_with_its_file(root: Path, name: str, text: str, problem: str) -> None:
    """A check that finds nothing checks nothing."""
    _write(root, name, text)
    ended = _run(root, "--check")
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"changes/{name}: ")
    assert problem in ended.stderr


def test_a_stop_within_code_or_a_version_does_not_end_a_sentence(root: Path) -> None:
    """Names of settings and files have stops."""
    _write(root, "a.fixed.md", "MQTT 3.1.1 clients may set `log.export. ` to a folder.\n")
    assert _run(root, "--check").returncode == 0


def test_the_open_section_gets_the_fragments_under_its_headings(root: Path) -> None:
    """The sentences of 0.1.0 are by area, and those that came later join them."""
    assert _run(root, "--release", "0.1.0", "--date", "2027-01-02").returncode == 0
    assert (root / "CHANGELOG.md").read_text(encoding="utf-8") == (
        "# Changelog\n\nNewest first.\n\n## 0.1.0 – 2027-01-02\n\n### Breaking changes\n\n- One.\n"
        "- A malformed topic closes the connection.\n\n### Broker\n\n- Two.\n\n"
        "### Fixed\n\n- `whimbrel log show` prints the last record.\n"
    )
    assert [path.name for path in (root / "changes").iterdir()] == ["README.md"]


def test_the_next_release_stands_above_the_last(root: Path) -> None:
    """A changelog is read from the newest release on."""
    (root / "CHANGELOG.md").write_text(OPEN.replace("not released yet", "2027-01-02"), encoding="utf-8")
    assert _run(root, "--release", "0.2.0", "--date", "2027-02-03").returncode == 0
    assert (root / "CHANGELOG.md").read_text(encoding="utf-8") == (
        "# Changelog\n\nNewest first.\n\n## 0.2.0 – 2027-02-03\n\n"
        "### Breaking changes\n\n- A malformed topic closes the connection.\n\n"
        "### Fixed\n\n- `whimbrel log show` prints the last record.\n\n"
        "## 0.1.0 – 2027-01-02\n\n### Breaking changes\n\n- One.\n\n### Broker\n\n- Two.\n"
    )


@pytest.mark.parametrize("version", ["0.1.0", "1", "v0.2.0"])
def test_a_release_is_not_changed_and_a_version_has_three_numbers(root: Path, version: str) -> None:
    """Nothing may be lost: neither the fragments nor what users were told."""
    before = OPEN.replace("not released yet", "2027-01-02")
    (root / "CHANGELOG.md").write_text(before, encoding="utf-8")
    assert _run(root, "--release", version).returncode == 2
    assert (root / "CHANGELOG.md").read_text(encoding="utf-8") == before
    assert (root / "changes" / "log.fixed.md").exists()


def test_a_broken_fragment_stops_a_release(root: Path) -> None:
    """A sentence that nobody checked would be in the changelog for ever."""
    _write(root, "a.fixed.md", "No end\n")
    assert _run(root, "--release", "0.1.0").returncode == 1
    assert (root / "CHANGELOG.md").read_text(encoding="utf-8") == OPEN
    assert (root / "changes" / "log.fixed.md").exists()
