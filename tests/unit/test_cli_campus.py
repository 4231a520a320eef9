"""``whimbrel campus node`` with settings that cannot be used: one sentence and exit code 2, in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from whimbrel.cli.campus import running
from whimbrel.cli.main import main
from whimbrel.cli.process import log_lines


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--interface nowhere", "interface nowhere cannot be used for IPv6 multicast: there is no such interface"),
        ("--topics nowhere", "topics file: found 'nowhere', allowed is one that can be read"),
        ("--config nowhere", "file of settings: found 'nowhere', allowed is one that can be read"),
        ("--profile wifi", "profile: found 'wifi', allowed is link or 802.15.4"),
        ("--log-format xml", "--log-format: found 'xml', allowed is text or json"),
    ],
)
def test_a_node_that_cannot_start_says_why_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: str, sentence: str
) -> None:
    """What was found and what is allowed, before and after the command becomes the node."""

    def run_here(_program: str, arguments: list[str]) -> None:
        monkeypatch.setattr(sys, "argv", arguments[2:])  # after "python -m"
        running.main()

    monkeypatch.setattr("os.execv", run_here)
    monkeypatch.setattr(log_lines, "set_up_logging", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["whimbrel", "campus", "node", "--data", str(tmp_path / "data"), *options.split()])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {sentence}")
    assert said.count("\n") == 1
