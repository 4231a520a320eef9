"""``whimbrel session`` against a real broker: what a person or a script sees of a session, from its making to its end.

Most commands run in this process, for starting another takes longer than all that they do.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess

from whimbrel.cli.main import main
from whimbrel.client import Client, Join

_PATIENCE_S = 60
WORD = "the owner's word"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield a broker that tests share; each has sessions of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process
    assert "Traceback" not in (told := "".join(process.lines)), told[-2_000:]


@dataclass(frozen=True)
class Done:
    """What a finished command left behind."""

    code: int
    out: str
    err: str


class Commands:
    """Commands that are run one after the other, against one broker."""

    def __init__(
        self, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.port, self._monkeypatch, self._capsys = broker.port, monkeypatch, capsys

    def run(self, *arguments: str, word: str | None = None) -> Done:
        """Run a command to its end; *word* is the session's password."""
        self._monkeypatch.setattr(sys, "argv", ["whimbrel", *arguments, "--port", str(self.port)])
        self._monkeypatch.setenv("WHIMBREL_SESSION_PASSWORD", word or "")
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            main()
        captured = self._capsys.readouterr()
        return Done(int(exited.value.code or 0), captured.out, captured.err)

    def out(self, *arguments: str, word: str | None = None) -> str:
        """Run a command that has to succeed; return what it printed."""
        done = self.run(*arguments, word=word)
        assert (done.code, done.err) == (0, "")
        return done.out

    def be_member(self, device: str, session: str, password: str | None = None) -> None:
        """Have *device* join and go away again."""

        async def work() -> None:
            async with asyncio.timeout(_PATIENCE_S), Client(port=self.port, client_id=device, join=[joining]):
                pass

        joining = Join(session, password)
        asyncio.run(work())


@pytest.fixture
def commands(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    """Return the commands of the shared broker."""
    return Commands(broker, monkeypatch, capsys)


@pytest.mark.parametrize("mqtt", ["5", "3.1.1"])
def test_a_session_from_its_making_to_its_end(commands: Commands, tmp_path: Path, mqtt: str) -> None:
    """Every command once, in the order in which somebody would use them."""
    ward, topic, device = f"ward {mqtt}", f"beds/{mqtt}", f"desk {mqtt}"
    words = tmp_path / "words.toml"
    words.write_text(f'user = "u"\nadmin = "a"\nowner = "{WORD}"\n', encoding="utf-8")
    version = ("--mqtt", mqtt)
    assert commands.out("session", "create", ward, "--passwords-file", str(words), *version) == f"{ward}: created\n"
    again = commands.out("session", "create", ward, "--passwords-file", str(words), *version, word="a")
    assert again == f"{ward}: exists already\n"  # a script may run twice
    made = commands.out(
        "session", "subscribe", ward, topic, "--filter", "n > 1", "--ttl", "60", "--max", "5", *version, word="a"
    )
    assert made == f"{ward}: subscribed to {topic}  filter=n > 1  qos=1  ttl=60  max=5\n"

    commands.be_member(device, ward, "u")
    for number in range(4):
        commands.out("publish", topic, json.dumps({"n": number}), "--qos", "1", *version)
    shown = json.loads(commands.out("session", "show", ward, "--json", *version, word="u"))
    assert shown["devices"] == [{"device": device, "present": False, "receipt": "take"}]
    assert (shown["held"], shown["subscriptions"][0]["filter"]) == (2, "n > 1")
    listed = commands.out("session", "list", "--device", device, *version)
    assert listed == f"{ward}  1 device, 1 subscription, 2 held\n"
    got = commands.out("session", "join", ward, "--device", device, "--count", "2", *version, word="u")
    assert got == f'{topic} {{"n": 2}}\n{topic} {{"n": 3}}\n'

    assert commands.out("session", "leave", ward, "--device", device, *version, word="u") == f"{ward}: left\n"
    assert (
        commands.out("session", "list", "--device", device, *version)
        == "no sessions of this device; `whimbrel session show NAME` prints any one\n"
    )
    gone = commands.out("session", "unsubscribe", ward, topic, *version, word="a")
    assert gone == f"{ward}: unsubscribed from {topic}\n"
    assert commands.out("session", "passwd", ward, "--open", *version, word=WORD) == f"{ward}: access changed\n"
    assert commands.out("session", "show", ward, *version) == f"{ward}  0 devices, 0 subscriptions, 0 held\n"
    assert commands.out("session", "delete", ward, *version) == f"{ward}: deleted\n"


def test_a_refusal_is_exit_code_1_and_shows_no_password(commands: Commands, tmp_path: Path) -> None:
    """A script sees by the code that it was not its own mistake."""
    words = tmp_path / "words.json"
    words.write_text(json.dumps({"owner": WORD}), encoding="utf-8")
    commands.out("session", "create", "closed", "--passwords-file", str(words))
    for arguments in (
        ("session", "create", "closed"),
        ("session", "show", "closed"),
        ("session", "join", "closed", "--count", "1"),
        ("session", "delete", "nobody's"),
        ("session", "passwd", "closed", "--open"),
        ("subscribe", "t", "--join", "closed", "--client-id", "d", "--count", "1"),
    ):
        done = commands.run(*arguments, word="mistaken")
        assert (done.code, done.out) == (1, ""), arguments
        assert done.err.startswith("error: ")
        assert "mistaken" not in done.err
    assert json.loads(commands.out("session", "delete", "closed", "--json", word=WORD))["done"] == "deleted"


def test_who_has_joined_is_told_what_others_do(commands: Commands) -> None:
    """On standard error, so that a pipe gets messages only; whoever is put out ends."""
    commands.out("session", "create", "told")
    words = [sys.executable, "-m", "whimbrel", "session", "join", "told", "--device", "watcher"]
    joined = subprocess.Popen(
        [*words, "--port", str(commands.port)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert joined.stderr is not None
    # Nobody says when it has joined; so a subscription is made again and again, until it is told of one.
    line, number = "", 0
    os.set_blocking(joined.stderr.fileno(), False)
    while not line:
        number += 1
        commands.out("session", "subscribe", "told", "t", "--max", str(number), "--device", "maker")
        line = joined.stderr.readline()
    assert line.startswith(("told: maker added t", "told: maker modified t"))
    commands.out("publish", "t", "hello", "--qos", "1")
    commands.out("session", "delete", "told", "--device", "maker")
    os.set_blocking(joined.stderr.fileno(), True)
    out, err = joined.communicate(timeout=_PATIENCE_S)
    assert (joined.returncode, out) == (1, "t hello\n")
    assert err.endswith("told: deleted by maker\n")


def test_subscribe_joins_and_keys_select(commands: Commands, tmp_path: Path) -> None:
    """The everyday command in a session; only what the producer's key is on comes."""
    public = "producer:" + hashlib.sha256(b"my key").hexdigest()
    (tmp_path / "key").write_text("producer:private:my key\n", encoding="utf-8")
    commands.out("session", "create", "keyed")
    commands.out("session", "subscribe", "keyed", "k", "--key", public)
    me = ("--join", "keyed", "--client-id", "me")
    commands.be_member("me", "keyed")
    commands.out("publish", "k", "of anybody", "--qos", "1")
    commands.out("publish", "k", "of the producer", "--qos", "1", "--key-file", str(tmp_path / "key"))
    got = commands.out("subscribe", "k", *me, "--key", public, "--count", "1")
    assert got == "k of the producer\n"
