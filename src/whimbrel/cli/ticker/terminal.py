"""The tickertape in a terminal: one line that is redrawn continuously, and the keys.

Rule: the terminal is restored to its former state, however this ends: `q`, an error, SIGTERM, SIGHUP, Ctrl-C; and also
while it is stopped with Ctrl-Z.
Rule: nothing is decided here; see ``board``. Only the board's line and the sequences of this file are written.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import time
import tty
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from whimbrel.cli.ticker.board import Board, Quit, Send
from whimbrel.cli.ticker.channel import Channel
from whimbrel.cli.ticker.keys import KeyReader
from whimbrel.cli.ticker.tape import Shade, Span
from whimbrel.client import ClientError

__all__ = ["Screen", "Show"]

_TICK_S = 0.08
_GOODBYE_S = 2.0
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_HIDE_CURSOR, _SHOW_CURSOR, _ERASE_LINE = "\x1b[?25l", "\x1b[?25h", "\r\x1b[K"
_SHADES = {Shade.FRESH: "\x1b[1m", Shade.PLAIN: "", Shade.FADING: "\x1b[2m"}
_NO_SHADE = "\x1b[0m"


class Screen:
    """One line of the terminal on standard input and output."""

    def __init__(self) -> None:
        self._input, self._output = sys.stdin.fileno(), sys.stdout.fileno()
        self._is_shaded = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._saved: list[Any] | None = None
        self._drawn = ""

    def __enter__(self) -> Self:
        self._saved = termios.tcgetattr(self._input)
        tty.setcbreak(self._input, termios.TCSADRAIN)  # Ctrl-C, Ctrl-Z and line ends keep their usual effect
        self._write(_HIDE_CURSOR)
        self._drawn = ""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        saved, self._saved = self._saved, None
        with suppress(OSError):  # the terminal may be gone
            self._write(_ERASE_LINE + _SHOW_CURSOR)
        if saved is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._input, termios.TCSADRAIN, saved)

    @property
    def width(self) -> int:
        """Most columns of a line; the last column stays free, because writing it makes some terminals wrap."""
        with suppress(OSError):
            return max(1, os.get_terminal_size(self._output).columns - 1)
        return 79

    def read(self) -> bytes:
        """Return the typed bytes; empty: the terminal is gone."""
        with suppress(OSError):
            return os.read(self._input, 4_096)
        return b""

    def draw(self, line: Sequence[Span], cursor: int | None) -> None:
        """Draw *line*, and the cursor if the user is typing."""
        shown = "".join(self._shade(span) for span in line)
        place = _HIDE_CURSOR if cursor is None else f"\r\x1b[{cursor}C{_SHOW_CURSOR}" if cursor else f"\r{_SHOW_CURSOR}"
        text = f"\r{shown}{place}"
        if text != self._drawn:
            self._write(text)
            self._drawn = text

    def wipe(self) -> None:
        """Forget the drawn line, because the terminal has another size."""
        self._write(_ERASE_LINE)
        self._drawn = ""

    def _shade(self, span: Span) -> str:
        shade = _SHADES[span.shade] if self._is_shaded else ""
        return f"{shade}{span.text}{_NO_SHADE}" if shade else span.text

    def _write(self, text: str) -> None:
        data = text.encode(sys.stdout.encoding or "utf-8", errors="replace")
        while data:
            data = data[os.write(self._output, data) :]


class Show:
    """A board in the terminal: receives, reads keys, sends and draws at the same time."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._screen, self._keys = Screen(), KeyReader()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending: set[asyncio.Task[None]] = set()

    def tell(self, sentence: str) -> None:
        """Show a sentence of our own on the board, because nothing else can be printed."""
        self.board.note(sentence, now=time.monotonic())
        self._changed.set()

    async def run(self, channel: Channel) -> int:
        """Show the messages of *channel* until the user quits or a signal ends it; return the exit status.

        All handlers, tasks and terminal modes are removed at the end.
        """
        self._channel, self._loop = channel, asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        for number in _ENDING:  # before the terminal is changed: from then on these signals must not kill us
            self._loop.add_signal_handler(number, self._end, 128 + number)
        self._loop.add_signal_handler(signal.SIGTSTP, self._pause)
        self._loop.add_signal_handler(signal.SIGWINCH, self._resize)
        try:
            with self._screen:
                self._resize()
                self._loop.add_reader(sys.stdin.fileno(), self._read_keys)
                self._start(self._listen())
                self._start(self._draw())
                try:
                    status = await self._ended
                    if self._sending:  # a line entered before quitting is still sent
                        await asyncio.wait(list(self._sending), timeout=_GOODBYE_S)
                    return status
                finally:
                    self._loop.remove_reader(sys.stdin.fileno())
                    for task in self._tasks:
                        task.cancel()
                    await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            for number in (*_ENDING, signal.SIGTSTP, signal.SIGWINCH):
                self._loop.remove_signal_handler(number)

    def _start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._sending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._ended.done():
            self._ended.set_exception(error)

    def _end(self, status: int) -> None:
        if not self._ended.done():
            self._ended.set_result(status)

    def _pause(self) -> None:
        """Stop, as the shell's user requested; continue when the shell resumes us."""
        self._screen.__exit__(None, None, None)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._screen.__enter__()
        self._resize()

    def _resize(self) -> None:
        self.board.tape.resize(self._screen.width)
        self._screen.wipe()
        self._changed.set()

    def _read_keys(self) -> None:
        data = self._screen.read()
        if not data:
            self._end(128 + signal.SIGHUP)
        for key in self._keys.feed(data):
            match self.board.press(key):
                case Send(group, text):
                    self._sending.add(self._start(self._send(group, text)))
                case Quit():
                    self._end(0)
        self._changed.set()

    async def _send(self, group: str, text: str) -> None:
        try:
            await self._channel.send(group, text)
        except ClientError as error:
            self.tell(f"not sent: {error}")

    async def _listen(self) -> None:
        async for message in self._channel.messages():
            self.board.arrived(message, now=time.monotonic())
            self._changed.set()
        self._end(0)

    async def _draw(self) -> None:
        while True:
            self._changed.clear()
            self._screen.draw(self.board.line(now=time.monotonic()), self.board.cursor)
            if self.board.is_still:
                await self._changed.wait()
            else:
                await asyncio.sleep(_TICK_S)
