"""``whimbrel user``: what people and scripts see, and that no password is ever shown."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from broker_rig import quick_scrypt

from whimbrel.broker.access.users import Users
from whimbrel.cli.main import main


@dataclass(frozen=True)
class Done:
    """What a finished command left behind."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


class Input(io.TextIOWrapper):
    """Standard input as a pipe, or as a terminal at which somebody types."""

    def __init__(self, text: str, *, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(text.encode()), encoding="utf-8")
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        """Tell whether somebody types."""
        return self._is_terminal


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``whimbrel user`` in this process and an empty folder; *typed* are the answers at a terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "whimbrel.broker.access.passwords._scrypt", quick_scrypt
    )  # how dear it is, test_broker_users tells

    def invoke(*arguments: str, piped: str = "", typed: list[str] | None = None) -> Done:
        answers = iter(typed or [])
        monkeypatch.setattr(sys, "argv", ["whimbrel", "user", *arguments])
        monkeypatch.setattr(sys, "stdin", Input(piped, is_terminal=typed is not None))
        monkeypatch.setattr("getpass.getpass", lambda *_prompt, **_stream: next(answers))
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            main()
        captured = capsys.readouterr()
        return Done(int(exited.value.code or 0), captured.out, captured.err)

    return invoke


def _default() -> Users:
    return Users.read(Path("whimbrel-data/users"))


def test_a_user_is_added_by_typing_the_password_twice(run: Run) -> None:
    """The first thing an administrator does with a new broker."""
    done = run("add", "ann", "--group", "ops", "--group", "day", typed=["secret", "secret"])
    assert (done.code, done.out) == (0, "ann: added to whimbrel-data/users\n")
    assert _default().verify("ann", "secret")
    assert _default().groups("ann") == {"ops", "day"}
    assert "secret" not in done.out + done.err


def test_a_slip_while_typing_is_asked_again(run: Run) -> None:
    """What nobody can see may be mistyped."""
    done = run("add", "ann", typed=["secret", "secert", "secret", "secret"])
    assert done.code == 0
    assert _default().verify("ann", "secret")


def test_a_password_comes_from_standard_input(run: Run) -> None:
    """Scripts have no terminal, and an argument would show the password to all."""
    assert run("add", "ann", "--password-file", "-", piped="secret\n").code == 0
    assert _default().verify("ann", "secret")


def test_a_password_comes_from_a_file(run: Run) -> None:
    """Secrets are often handed over as files."""
    Path("word").write_text("se cret\r\n", encoding="utf-8")
    assert run("add", "ann", "--file", "other", "--password-file", "word").out == "ann: added to other\n"
    assert Users.read(Path("other")).verify("ann", "se cret")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"one\ntwo\n", "word: found several lines, allowed is one line, the password"),
        (b"\xff", "word: found bytes that are not UTF-8, allowed is a password in UTF-8"),
        (b"\n", "a password must be a string of at least one character"),
        (b"x" * 70_000, "a password must be at most 1024 bytes"),
    ],
)
def test_what_is_no_password_is_refused(run: Run, content: bytes, message: str) -> None:
    """A password that cannot be typed in again locks somebody out."""
    Path("word").write_bytes(content)
    done = run("add", "ann", "--password-file", "word")
    assert done.code == 2
    assert done.err.startswith(f"error: {message}")
    assert not Path("whimbrel-data/users").exists()


def test_without_a_terminal_the_command_says_what_to_do(run: Run) -> None:
    """A script must not hang on a question that nobody sees."""
    done = run("add", "ann")
    assert done.code == 2
    assert "give --password-file" in done.err


def test_a_bad_name_is_refused_before_the_password_is_asked_for(run: Run) -> None:
    """Nobody likes to type a secret twice for nothing."""
    for arguments in (("a:b",), ("ann", "--group", "a,b")):
        done = run("add", *arguments, typed=[])
        assert done.code == 2
        assert "allowed is text without" in done.err


def test_adding_again_changes_the_password(run: Run) -> None:
    """There is no second command to learn, and the output tells which it was."""
    run("add", "ann", "--group", "ops", "--password-file", "-", piped="old")
    done = run("add", "ann", "--password-file", "-", piped="new")
    assert done.out == "ann: password changed in whimbrel-data/users\n"
    assert _default().verify("ann", "new")
    assert _default().groups("ann") == {"ops"}


def test_users_are_listed_for_people_and_for_scripts(run: Run) -> None:
    """Who may connect is a question one must be able to ask."""
    run("add", "bob", "--password-file", "-", piped="x")
    run("add", "ann", "--group", "ops", "--group", "day", "--password-file", "-", piped="x")
    assert run("list").out == "ann  (day, ops)\nbob\n"
    listed = json.loads(run("list", "--json").out)
    assert listed == [{"name": "ann", "groups": ["day", "ops"]}, {"name": "bob", "groups": []}]


def test_a_removed_user_is_gone_and_an_unknown_one_is_an_honest_no(run: Run) -> None:
    """Scripts tell a user who was there from one who was not by the exit code."""
    run("add", "ann", "--password-file", "-", piped="x")
    assert run("remove", "ann").out == "ann: removed from whimbrel-data/users\n"
    done = run("remove", "ann")
    assert (done.code, done.err) == (1, "ann: no such user in whimbrel-data/users\n")
    assert run("list").out == "whimbrel-data/users has no users\n"
    assert run("list", "--json").out == "[]\n"


def test_a_users_file_that_is_not_there_is_named(run: Run) -> None:
    """Most likely the command was started in another directory than the broker."""
    for command in (("list",), ("remove", "ann")):
        done = run(*command, "--file", "nowhere")
        assert done.code == 2
        assert done.err.startswith("error: nowhere: there is no such file")


def test_the_password_is_no_argument(run: Run) -> None:
    """Arguments are seen by every process of the machine, and kept in the shell's history."""
    assert run("add", "ann", "secret").code == 2
    assert run("add", "ann", "--password", "secret").code == 2
