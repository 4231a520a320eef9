"""``whimbrel campus`` with settings that cannot be used: one sentence and exit code 2, in this process."""

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
        ("--sign open", "key file open: found mode 0644, allowed is 0600: others can read or change the secret key"),
        ("--sign words", "key file words: found 64 characters, not all of them hexadecimal digits, allowed is 64 hex"),
        ("--interface lo --data words", "data folder: found 'words', allowed is a folder"),
        ("--interface lo --reach reach", "reach of car: found 5, allowed is a list of nodes"),
        ("--config zero", "zero: data: found 'a\\x00b', allowed is a text without U+0000"),
        ("--interface lo --data damaged", "damaged/memory is not the memory of a node: it does not begin like one"),
    ],
)
def test_a_node_that_cannot_start_says_why_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: str, sentence: str
) -> None:
    """What was found and what is allowed, before and after the command becomes the node."""
    (tmp_path / "words").write_text("words of " * 7 + "w", encoding="ascii")
    (tmp_path / "words").chmod(0o600)
    (tmp_path / "open").write_text("0c" * 32, encoding="ascii")
    (tmp_path / "open").chmod(0o644)
    (tmp_path / "reach").write_text('{"car": 5}', encoding="ascii")
    (tmp_path / "zero").write_text('data = "a\\u0000b"\n', encoding="ascii")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "memory").write_text("rubbish", encoding="ascii")

    def run_here(_program: str, arguments: list[str]) -> None:
        monkeypatch.setattr(sys, "argv", arguments[2:])  # after "python -m"
        running.main()

    monkeypatch.setattr("os.execv", run_here)
    monkeypatch.setattr(log_lines, "set_up_logging", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["whimbrel", "campus", "node", "--data", "data", *options.split()])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {sentence}")
    assert said.count("\n") == 1


GATE = "way-server --name north --campus-key key"
USER = "--user gate --password-file"


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("way-server --campus-key key", "name: found '', allowed is a string of at least one character"),
        ("way-server --name north", "campus_key: found nothing, allowed is a file with the secret key of the campus"),
        (
            "way-server --name north --campus-key open",
            "key file open: found mode 0644, allowed is 0600: others can read or change the secret key",
        ),
        (f"{GATE} --previous-key key", "previous_until: found '', allowed is a time, together with previous_key"),
        (f"{GATE} --previous-key open --previous-until 2027-03-01T00:00:00Z", "key file open: found mode 0644"),
        (f"{GATE} --clock sun", "clock: found 'sun', allowed is admin or own"),
        (f"{GATE} --tls-ca nowhere", "nowhere: No such file or directory"),
        (f"{GATE} --tls-ca key", "key has no certificate in PEM"),
        (f"{GATE} --password-file key", "password_file: found 'key', allowed is none without a user"),
        (f"{GATE} {USER} nowhere", "password file: found 'nowhere', allowed is one that can be read (No such file"),
        (f"{GATE} {USER} empty", "password file: found 'empty', allowed is one with the password in its first line"),
        (f"admin {USER} nowhere", "password file: found 'nowhere', allowed is one that can be read (No such file"),
        (f"admin {USER} bytes", "password file: found 'bytes', allowed is one in UTF-8"),
        ("admin --config settings.toml", "host: found '', allowed is a string of at least one character"),
        ("admin --tls-ca nowhere", "nowhere: No such file or directory"),
        ("admin --port 1 --topics nowhere", "topics file: found 'nowhere', allowed is one that can be read"),
        ("key open", "key file open: found mode 0644, allowed is 0600"),
        ("publish lunch pasta --data nowhere", "no campus node answers in nowhere: No such file or directory"),
        ("status --data nowhere", "no campus node answers in nowhere: No such file or directory"),
    ],
)
def test_a_command_that_cannot_work_says_why_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, sentence: str
) -> None:
    """A gate with a bad file must not run without its broker; nothing was opened, and secrets are not quoted."""
    for name, text, mode in (("key", "0c" * 32, 0o600), ("open", "0c" * 32, 0o644), ("empty", "\n", 0o600)):
        (tmp_path / name).write_text(text, encoding="ascii")
        (tmp_path / name).chmod(mode)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "settings.toml").write_text('host = ""\n', encoding="ascii")
    monkeypatch.setattr(log_lines, "set_up_logging", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["whimbrel", "campus", *command.split()])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {sentence}")
    assert said.count("\n") == 1
    assert "0c0c" not in said
    assert not (tmp_path / "campus-data").exists()
