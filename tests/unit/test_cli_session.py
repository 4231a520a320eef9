"""``whimbrel session``: what it refuses before it connects, where passwords come from, and what it prints."""

from __future__ import annotations

import io
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from whimbrel.cli.main import main
from whimbrel.cli.options import connection
from whimbrel.cli.options.passwords import ENVIRONMENT, keys_from, read_access_options, session_password
from whimbrel.cli.session.connection import this_device
from whimbrel.cli.session.printing import change_line, tree_of, words_of
from whimbrel.client import AccessControlList, Grant, Right, SessionChange, SessionSubscription
from whimbrel.errors import InvalidValueError
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import V5, Connack

COMMANDS = ("create", "join", "leave", "list", "show", "passwd", "subscribe", "unsubscribe", "delete")
KEY = "producer:" + "ab" * 32
SUBSCRIPTION = SessionSubscription(
    topic_filter="a/#", name="n", filter="t > 1", ttl_s=60, max=5, keys=(KEY,), insecure=False
)


@dataclass(frozen=True)
class Done:
    """What a finished command left behind."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


class Input(io.TextIOWrapper):
    """Standard input as a pipe, or as a terminal at which somebody types."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        """Tell whether somebody types."""
        return self._is_terminal


Typed = Callable[..., None]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Let somebody type *words* at a terminal; none at all: there is no terminal."""

    def prepare(*words: str) -> None:
        answers = iter(words)
        monkeypatch.setattr(sys, "stdin", Input(is_terminal=bool(words)))
        monkeypatch.setattr("getpass.getpass", lambda *_prompt, **_stream: next(answers))
        monkeypatch.delenv(ENVIRONMENT, raising=False)

    prepare()
    return prepare


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: Typed) -> Run:
    """Run ``whimbrel session`` in this process and an empty folder, where no terminal is."""
    typed()
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["whimbrel", "session", *arguments])
        with pytest.raises(SystemExit) as exited:
            main()
        captured = capsys.readouterr()
        return Done(int(exited.value.code or 0), captured.out, captured.err)

    return invoke


# -- usage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_has_an_example(run: Run, command: str) -> None:
    """The quickest way to learn a command."""
    assert f"Example: whimbrel session {command}" in run(command, "--help").out


@pytest.mark.parametrize(
    "arguments",
    [
        ("create",),
        ("create", "a/b"),
        ("create", "a", "--levels", "4"),
        ("create", "a", "--levels", "1"),  # without a terminal
        ("create", "a", "--open", "--levels", "1"),
        ("create", "a", "--passwords-file", "nowhere"),
        ("create", "a", "--password", "secret"),
        ("join", "a", "--session-password", "secret"),
        ("join", "a", "--count", "0"),
        ("join", "$a"),
        ("passwd", "a"),
        ("subscribe", "a"),
        ("subscribe", "a", "t/#/u"),
        ("subscribe", "a", "t", "--key", "secret"),
        ("show", "a", "--mqtt", "4"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(run: Run, arguments: tuple[str, ...]) -> None:
    """Exit code 2 means: the command was wrong, not the broker. A password is never an argument."""
    done = run(*arguments, "--port", "1")
    assert (done.code, done.out) == (2, "")
    assert done.err


@pytest.mark.parametrize("arguments", [("list",), ("show", "a"), ("join", "a"), ("create", "a", "--json")])
def test_a_broker_that_is_not_there_is_an_honest_no(run: Run, arguments: tuple[str, ...]) -> None:
    """Exit code 1, and the address that was tried."""
    done = run(*arguments, "--port", "1", "--retry", "0")
    assert (done.code, done.out) == (1, "")
    assert done.err == "error: cannot connect to 127.0.0.1 port 1: connection refused\n"


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Port of a broker that accepts a connection and then answers nothing, as one does whose disk is full."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with server.accept()[0] as link:
                link.recv(4096)
                link.sendall(encode(Connack(), V5))
                while link.recv(4096):
                    pass

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]


def test_a_command_does_not_wait_for_ever(run: Run, monkeypatch: pytest.MonkeyPatch, silent_port: int) -> None:
    """One sentence that says what may have happened, and exit code 1."""
    monkeypatch.setattr(connection, "MAX_ANSWER_S", 0.2)
    done = run("create", "a", "--open", "--port", str(silent_port))
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: no answer within 0.2 s; the request may still be done later.")


def test_a_bad_filter_is_shown_with_its_place(run: Run) -> None:
    """Before a password is asked for, or anything is sent."""
    done = run("subscribe", "a", "t", "--filter", "level = 5", "--port", "1")
    assert done.code == 2
    assert done.err.endswith("  level = 5\n        ^\n")


def test_a_device_has_the_same_name_the_next_time() -> None:
    """Its sessions keep for it, and find it again by its name."""
    assert this_device() == this_device()
    assert this_device().endswith("/cli")


# -- secrets ---------------------------------------------------------------------------------------------------------


def test_a_session_password_comes_from_file_environment_or_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    """In this order; where there is none of them, the session is taken for one without a password."""
    (tmp_path / "word").write_text("from file\n", encoding="utf-8")
    assert session_password("a", None) is None
    typed("typed", "")
    assert session_password("a", None) is None
    assert session_password("a", Path("-")) == "typed"
    assert session_password("a", Path("-")) is None
    monkeypatch.setenv(ENVIRONMENT, "from environment")
    assert session_password("a", None) == "from environment"
    assert session_password("a", tmp_path / "word") == "from file"


@pytest.mark.parametrize(
    ("levels", "words"),
    [(1, {"owner": "1"}), (2, {"user": "1", "admin": "2"}), (3, {"user": "1", "admin": "2", "owner": "3"})],
)
def test_passwords_of_levels_are_asked_for_one_after_the_other(
    typed: Typed, levels: int, words: dict[str, str]
) -> None:
    """Twice each, for nobody sees what is typed."""
    typed(*(word for word in words.values() for _ in range(2)))
    access = read_access_options(levels, None, None, is_open=False)
    assert access is not None
    found = {"user": access.user, "admin": access.admin, "owner": access.owner}
    assert {level: word for level, word in found.items() if word} == words
    assert "owner=" not in repr(access)


@pytest.mark.parametrize("text", ['user = "u"\nadmin = "a"\n', '{"user": "u", "admin": "a"}'])
def test_passwords_come_from_a_file(tmp_path: Path, text: str) -> None:
    """A script has no terminal; TOML and JSON are what scripts write."""
    (tmp_path / "words").write_text(text, encoding="utf-8")
    access = read_access_options(None, tmp_path / "words", None, is_open=False)
    assert access is not None
    assert (access.user, access.admin, access.owner) == ("u", "a", None)


@pytest.mark.parametrize(
    "text",
    [
        "secret",
        '{"secret": ',
        '["secret"]',
        'admin = "secret"',
        'owner = "secret"\nchef = "secret"',
        "owner = 1",
        "\xff",
    ],
)
def test_a_file_that_holds_something_else_is_not_quoted(tmp_path: Path, text: str) -> None:
    """It holds secrets, and errors are seen by others."""
    (tmp_path / "words").write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidValueError) as refused:
        read_access_options(None, tmp_path / "words", None, is_open=False)
    assert "secret" not in str(refused.value)


def test_a_list_comes_from_a_file(tmp_path: Path) -> None:
    """As the contract spells it; what is left out is empty."""
    (tmp_path / "list").write_text('owner = "ann"\n[users]\nbob = ["join"]\n', encoding="utf-8")
    access = read_access_options(None, None, tmp_path / "list", is_open=False)
    assert access is not None
    assert access.acl == AccessControlList(owner="ann", grants=(Grant(who="bob", rights=frozenset({Right.JOIN})),))
    (tmp_path / "list").write_text('owner = "ann"\n[users]\nbob = ["paint"]\n', encoding="utf-8")
    with pytest.raises(InvalidValueError, match="arrays of rights"):
        read_access_options(None, None, tmp_path / "list", is_open=False)


def test_keys_come_as_options_and_from_a_file(tmp_path: Path) -> None:
    """Private ones belong into a file, which others cannot see."""
    (tmp_path / "keys").write_text("producer:private:a b\n\n", encoding="utf-8")
    assert keys_from([KEY], tmp_path / "keys") == (KEY, "producer:private:a b")
    assert keys_from(None, None) == ()


# -- output ----------------------------------------------------------------------------------------------------------


def test_a_subscription_is_printed_on_one_line() -> None:
    """For people; of its keys the number, for hashes say nothing to them."""
    assert words_of(SUBSCRIPTION) == "a/#  name=n  filter=t > 1  qos=1  ttl=60  max=5  keys=1  insecure=no"
    assert words_of(SessionSubscription(topic_filter="t")) == "t  qos=1"


def test_a_subscription_in_json_is_as_the_wire_has_it() -> None:
    """One word for one thing, so that scripts need not learn two."""
    assert json.loads(json.dumps(tree_of(SUBSCRIPTION))) == {
        "topic": "a/#", "name": "n", "filter": "t > 1", "ttl": 60, "max": 5, "qos": 1, "keys": [KEY],
        "insecure": False, "near": None, "stale": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "subscription", "text"),
    [
        ("added", SessionSubscription(topic_filter="t"), "ward: ann added t  qos=1"),
        ("removed", SessionSubscription(topic_filter="t"), "ward: ann removed t  qos=1"),
        ("left", None, "ward: put out by ann"),
        ("deleted", None, "ward: deleted by ann"),
    ],
)
def test_a_change_is_a_sentence(change: str, subscription: SessionSubscription | None, text: str) -> None:
    """Who did what to which."""
    told = SessionChange(session="ward", change=change, subscription=subscription, device="ann")
    assert change_line(told, as_json=False) == text
    assert json.loads(change_line(told, as_json=True))["change"] == change


def test_publish_and_subscribe_have_keys_and_sessions(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What 3.1.1 cannot say, or what would leave a nameless member behind, is refused at once."""
    del run  # it has changed to an empty folder
    for arguments in (
        ("publish", "a", "b", "--mqtt", "3.1.1", "--insecure"),
        ("publish", "a", "b", "--key", "secret"),
        ("subscribe", "a", "--join", "ward"),
        ("subscribe", "a", "--mqtt", "3.1.1", "--secure"),
        ("subscribe", "a", "--join", "a/b", "--client-id", "d"),
    ):
        monkeypatch.setattr(sys, "argv", ["whimbrel", *arguments, "--port", "1"])
        with pytest.raises(SystemExit) as exited:
            main()
        assert exited.value.code == 2, arguments
