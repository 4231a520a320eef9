"""``whimbrel tickertape`` against a real broker: in pipes, away and back, and in a terminal that is given back."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import queue
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import pytest
from tests.e2e.broker_process import BrokerProcess

from whimbrel.cli.main import main
from whimbrel.client import Client

_PATIENCE_S = 60
"""Nothing here waits so long; a hang is a failure, not a pause."""
_COLUMNS = 60
_VARIABLE = "WHIMBREL_SESSION_PASSWORD"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield a broker that tests share; each has users and groups of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker
    assert "Traceback" not in "".join(broker.lines)


def _command(broker: BrokerProcess, arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "whimbrel", "tickertape", "--port", str(broker.port), *arguments]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", _VARIABLE}} | {
        "TERM": "xterm"
    }


def run(broker: BrokerProcess, *arguments: str, password: str | None = None) -> tuple[int, str, str]:
    """Run the command to its end, in this process; return its exit status and what it printed."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        patch.setattr(sys, "argv", ["whimbrel", "tickertape", "--port", str(broker.port), *arguments])
        patch.delenv(_VARIABLE, raising=False)
        if password is not None:
            patch.setenv(_VARIABLE, password)
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


def told(broker: BrokerProcess, *arguments: str) -> list[str]:
    """Run the command, which must succeed; return the lines that it printed."""
    status, out, err = run(broker, *arguments)
    assert status == 0, err
    return out.splitlines()


class Talk:
    """The command in a pipe, beside the test."""

    def __init__(self, broker: BrokerProcess, *arguments: str) -> None:
        self._process = subprocess.Popen(
            _command(broker, arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            encoding="utf-8", env=_environment(),
        )  # fmt: skip
        self._out = self._lines(self._process.stdout)
        self._err = self._lines(self._process.stderr)
        self.groups = self.remark()
        assert self.groups.startswith("groups: ")  # then it listens

    def _lines(self, stream: IO[str] | None) -> queue.Queue[str]:
        lines: queue.Queue[str] = queue.Queue()

        def read() -> None:
            for line in stream or ():
                lines.put(line.rstrip("\n"))
            lines.put("(the end)")

        threading.Thread(target=read, daemon=True).start()
        return lines

    def heard(self) -> str:
        """Return the next line that it prints."""
        return self._out.get(timeout=_PATIENCE_S)

    def remark(self) -> str:
        """Return the next line that it prints to standard error."""
        return self._err.get(timeout=_PATIENCE_S)

    def say(self, line: str) -> None:
        """Give it a line of input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def wait(self) -> int:
        """Return its exit status when it has ended."""
        return self._process.wait(_PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


# -- in a pipe -------------------------------------------------------------------------------------------------------


def test_two_people_talk(broker: BrokerProcess) -> None:
    """What one types, both read, in the order in which it was said."""
    with Talk(broker, "talk", "--as", "ann") as ann, Talk(broker, "talk", "--as", "ben") as ben:
        ann.say("talk: tea: now?")
        assert ann.heard() == ben.heard() == "talk: ann: tea: now?"
        ben.say("no group here")
        assert "allowed is GROUP: TEXT" in ben.remark()
        ben.say("talk: yes 東京")
        assert ann.heard() == ben.heard() == "talk: ben: yes 東京"


def test_what_is_said_to_other_groups_is_not_heard(broker: BrokerProcess) -> None:
    """A group is a subscription."""
    with Talk(broker, "birds", "--as", "gil", "--count", "1") as gil:
        told(broker, "--send", "fish", "under water", "--as", "hal")
        told(broker, "--send", "birds", "in the air", "--as", "hal")
        assert gil.heard() == "birds: hal: in the air"
        assert gil.wait() == 0


def test_what_was_said_while_one_was_away_is_held(broker: BrokerProcess) -> None:
    """The reason for a session: the groups are remembered too, and nothing comes twice."""
    assert told(broker, "--once", "away", "--as", "cy", "--max", "2") == []
    for text in ("one", "two", "three"):
        told(broker, "--send", "away", text, "--as", "dee")
    assert told(broker, "--once", "--as", "cy") == ["away: dee: two", "away: dee: three"]
    assert told(broker, "--once", "--as", "cy") == []


def test_more_than_can_be_on_its_way_at_a_time_is_held_and_printed(broker: BrokerProcess) -> None:
    """The mark that ends --once comes behind all of it."""
    assert told(broker, "--once", "flood", "--as", "fay", "--max", "500") == []
    with Talk(broker, "flood", "--as", "gus") as gus:
        for number in range(300):
            gus.say(f"flood: {number}")
        assert [gus.heard() for _ in range(300)] == [f"flood: gus: {number}" for number in range(300)]
    assert told(broker, "--once", "--as", "fay") == [f"flood: gus: {number}" for number in range(300)]


def test_a_device_takes_what_another_of_the_session_need_not_read_again(broker: BrokerProcess) -> None:
    """Unless it keeps: then the one at home reads it too."""
    at_home, on_the_road = ("--as", "eve", "--client-id", "home"), ("--as", "eve", "--client-id", "road")
    assert told(broker, "--once", "trip", *at_home) == told(broker, "--once", *on_the_road) == []
    told(broker, "--send", "trip", "first", "--as", "dee")
    assert told(broker, "--once", *on_the_road) == ["trip: dee: first"]
    assert told(broker, "--once", *at_home) == []
    told(broker, "--send", "trip", "second", "--as", "dee")
    assert told(broker, "--once", "--keep", *on_the_road) == ["trip: dee: second"]
    assert told(broker, "--once", *at_home) == ["trip: dee: second"]


def test_once_does_not_put_out_a_tape_that_runs(broker: BrokerProcess) -> None:
    """It is a device of its own; what the tape has read is not printed again."""
    with Talk(broker, "both", "--as", "ida") as ida:
        told(broker, "--send", "both", "hello", "--as", "dee")
        assert ida.heard() == "both: dee: hello"
        ida.say("both: still here")
        assert ida.heard() == "both: ida: still here"
        told(broker, "--once", "--as", "ida")
        ida.say("both: and now")
        assert ida.heard() == "both: ida: and now"


def test_a_filter_mutes(broker: BrokerProcess) -> None:
    """Its names are those of the message."""
    with Talk(broker, "news", "--as", "jo", "--filter", "USER != 'bot' && !contains(TICKERTEXT, 'sale')") as jo:
        for user, text in (("bot", "beep"), ("kim", "a sale"), ("kim", "rain")):
            told(broker, "--send", "news", text, "--as", user)
        assert jo.heard() == "news: kim: rain"


def test_groups_are_left_and_remembered(broker: BrokerProcess) -> None:
    """They are the session's, not the process's."""
    told(broker, "--once", "here", "there", "--as", "lea")
    told(broker, "--once", "--leave", "here", "--as", "lea")
    told(broker, "--send", "here", "one", "--as", "dee")
    told(broker, "--send", "there", "two", "--as", "dee")
    assert told(broker, "--once", "--as", "lea") == ["there: dee: two"]


def test_other_subscriptions_of_the_session_are_heard_but_are_no_groups(broker: BrokerProcess) -> None:
    """Another device may have made them, and their names may be anything."""

    async def subscribe() -> None:
        async with Client(port=broker.port) as client:
            for topic_filter in ("tickertape/a/+", "ward/#"):
                await client.sessions.subscribe("tickertape-uma", topic_filter)

    told(broker, "--once", "mine", "--as", "uma")
    asyncio.run(subscribe())
    with Talk(broker, "--as", "uma") as uma:
        assert uma.groups == "groups: mine"
        _publish(broker, "ward/3", "39.2")
        assert uma.heard() == "ward/3: ?: 39.2"


def _publish(broker: BrokerProcess, topic: str, body: str) -> None:
    async def publish() -> None:
        async with Client(port=broker.port) as client:
            await client.publish(topic, body, qos=1)

    asyncio.run(publish())


def test_hostile_text_is_harmless_when_it_arrives(broker: BrokerProcess) -> None:
    """Any client of the broker can write to a group, whatever it likes."""
    body = json.dumps({"USER": "\x1b]0;owned\x07", "TICKERTEXT": "\x1b[2Jgone\r\nforged: ann: hello"})
    with Talk(broker, "open", "--as", "mo") as mo:
        _publish(broker, "tickertape/open", body)
        assert mo.heard() == "open: ]0;owned: [2Jgone forged: ann: hello"


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_message_has_the_attributes_that_tickertape_had(broker: BrokerProcess, version: str) -> None:
    """In both versions of MQTT."""
    group, user = f"json{version}", f"nia{version}"
    told(broker, "--once", group, "--as", user, "--mqtt", version)
    told(broker, "--send", group, "hello", "--as", "dee", "--minutes", "3", "--mqtt", version)
    (line,) = told(broker, "--once", "--json", "--as", user, "--mqtt", version)
    message = json.loads(line)
    assert message.pop("Message-Id")
    assert message == {"TICKERTAPE": group, "USER": "dee", "TICKERTEXT": "hello", "TIMEOUT": 3}


def test_a_session_with_a_password_is_for_whoever_has_it(broker: BrokerProcess) -> None:
    """The first to name the session makes it, with that password."""
    ours = ("--once", "--session", "secret")
    assert [run(broker, *ours, password=word)[0] for word in ("right", "right", "wrong", None)] == [0, 0, 1, 1]
    assert run(broker, *ours, password="wrong")[2].startswith("error: session secret: ")  # noqa: S106 # made up


def test_a_tape_comes_back_after_the_broker_did(tmp_path: Path) -> None:
    """With its session, and without a gap."""
    with BrokerProcess(tmp_path) as broker, Talk(broker, "chat", "--as", "ola") as ola:
        broker.kill()
        assert "lost" in ola.remark()
        broker.start()
        told(broker, "--send", "chat", "back", "--as", "dee")
        assert ola.heard() == "chat: dee: back"


# -- in a terminal ---------------------------------------------------------------------------------------------------

_SEQUENCE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")


class Terminal:
    """The command in a terminal of its own."""

    def __init__(self, broker: BrokerProcess, *arguments: str, columns: int = _COLUMNS) -> None:
        self._ours, self._its = pty.openpty()
        self.resize(columns)
        self.mode = termios.tcgetattr(self._its)
        """As it was before anything ran in it."""
        self.written = ""
        self._process = subprocess.Popen(
            _command(broker, arguments), stdin=self._its, stdout=self._its, stderr=self._its, env=_environment(),
            start_new_session=True,
        )  # fmt: skip

    def resize(self, columns: int) -> None:
        """Have so many columns."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    @property
    def mode_now(self) -> list[object]:
        """The terminal's mode."""
        return termios.tcgetattr(self._its)

    @property
    def pid(self) -> int:
        """The id of the command's process."""
        return self._process.pid

    def press(self, text: str) -> None:
        """Press keys."""
        os.write(self._ours, text.encode())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def shows(self, text: str) -> None:
        """Wait until *text* has been shown in one piece, since the last time this was asked."""
        while text not in _SEQUENCE.sub("", self.written):
            self._read()
        self.written = ""

    def _read(self) -> None:
        ready, _, _ = select.select([self._ours], [], [], _PATIENCE_S)
        assert ready, f"nothing more came after {self.written[-500:]!r}"
        self.written += os.read(self._ours, 65_536).decode(errors="replace")

    def wait(self) -> int:
        """Return the exit status; what was written meanwhile is read, for a full terminal would stop it."""
        with self._reading():
            return self._process.wait(_PATIENCE_S)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Read by a thread, until nothing is left and nobody waits any longer."""
        over = threading.Event()

        def read() -> None:
            while True:
                is_over = over.is_set()
                if select.select([self._ours], [], [], 0.0 if is_over else 0.05)[0]:
                    self.written += os.read(self._ours, 65_536).decode(errors="replace")
                elif is_over:
                    return

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)
        os.close(self._its)


def test_a_line_is_typed_and_scrolls_by(broker: BrokerProcess) -> None:
    """All there is to do: type, choose a group, look back, quit."""
    with Terminal(broker, "pub", "park", "--as", "pat") as terminal:
        terminal.press("i")
        terminal.shows("to pub> ")
        terminal.press("beer?\r")
        terminal.shows("pub: pat: beer?")
        terminal.press("\t")
        terminal.shows("to park> ")
        terminal.press("walk?\r")
        terminal.shows("park: pat: walk?")
        terminal.press("h")
        terminal.shows("[2/2] park: pat: walk?")
        terminal.press("\x1b[A")
        terminal.shows("[1/2] pub: pat: beer?")
        terminal.press("hq")
        assert terminal.wait() == 0
        assert terminal.mode_now == terminal.mode
        assert terminal.written.endswith("\x1b[?25h")  # the cursor is there again


def test_what_was_typed_before_quitting_is_sent(broker: BrokerProcess) -> None:
    """However fast somebody types."""
    told(broker, "--once", "bye", "--as", "wes")
    with Terminal(broker, "bye", "--as", "xan") as terminal:
        terminal.press("i")
        terminal.shows("to bye> ")
        terminal.press("good night\rq")
        assert terminal.wait() == 0
    assert told(broker, "--once", "--as", "wes") == ["bye: xan: good night"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_terminal_is_given_back_when_a_signal_ends_it(broker: BrokerProcess, number: signal.Signals) -> None:
    """Nobody should have to type `reset` blindly."""
    with Terminal(broker, "sig", "--as", f"quin{number}") as terminal:
        terminal.press("i")
        terminal.shows("to sig> ")
        assert terminal.mode_now != terminal.mode
        terminal.signal(number)
        assert terminal.wait() == 128 + number
        assert terminal.mode_now == terminal.mode
        assert terminal.written.endswith("\x1b[?25h")
        assert "Traceback" not in terminal.written


def test_the_terminal_is_given_back_when_the_broker_sends_us_away(broker: BrokerProcess) -> None:
    """An error is printed on a terminal that can show it."""
    with Terminal(broker, "twin", "--as", "ray", "--client-id", "ray") as terminal:
        terminal.press("i")
        terminal.shows("to twin> ")
        told(broker, "--send", "twin", "I am ray now", "--client-id", "ray")
        assert terminal.wait() == 1
        assert terminal.mode_now == terminal.mode
        assert "error: the broker ended the connection" in terminal.written


def test_what_becomes_of_the_connection_is_said_on_the_line(tmp_path: Path) -> None:
    """There is no other place for it."""
    with BrokerProcess(tmp_path) as broker, Terminal(broker, "c", "--as", "v", columns=120) as terminal:
        terminal.press("i")
        terminal.shows("to c> ")
        broker.kill()
        terminal.press("\x1b")
        terminal.shows("trying again")
        broker.start()
        terminal.press("i")
        terminal.press("still here\r")
        terminal.shows("c: v: still here")
        terminal.press("q")
        assert terminal.wait() == 0


def test_the_line_follows_the_size_of_the_terminal(broker: BrokerProcess) -> None:
    """Never a column more than there is, or the line would wrap."""
    with Terminal(broker, "wide", "--as", "sue") as terminal:
        terminal.press("h")
        terminal.shows("\r" + "[0/0] nothing was said yet".ljust(_COLUMNS - 1))
        terminal.resize(20)
        terminal.signal(signal.SIGWINCH)
        terminal.shows("\r[0/0] nothing was …")
        terminal.press("qq")
        assert terminal.wait() == 0


def test_a_terminal_is_given_back_while_it_is_stopped(broker: BrokerProcess) -> None:
    """Ctrl-Z gives the shell a terminal that works, and fg gives us ours."""
    with Terminal(broker, "stop", "--as", "tim") as terminal:
        terminal.press("i")
        terminal.shows("to stop> ")
        terminal.signal(signal.SIGTSTP)
        os.waitid(os.P_PID, terminal.pid, os.WSTOPPED | os.WNOWAIT)
        assert terminal.mode_now == terminal.mode
        terminal.signal(signal.SIGCONT)
        terminal.shows("to stop> ")
        assert terminal.mode_now != terminal.mode
        terminal.press("\x1b")
        terminal.press("q")
        assert terminal.wait() == 0
        assert terminal.mode_now == terminal.mode
