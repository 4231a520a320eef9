"""The prompt of a group's owner: one question at a time about a device that asks to join (Huang, 2.3).

Rule: an answer applies to the public key in the question. A device that returns with another key is a new question,
because its address may be forged.
Rule: only an explicit yes admits a device. Input that is neither yes nor no repeats the question; the end of input is
a no.
Rule: the number of waiting questions is limited, and each waits as long as its device. If there are too many, the new
device is refused.
Rule: input from before a question was shown does not answer it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import termios
from collections import deque
from typing import TYPE_CHECKING, Protocol

import typer

from whimbrel.errors import InvalidValueError, Phrase

if TYPE_CHECKING:  # other commands need not load Bluetooth
    from whimbrel.rendezvous.events import Address

__all__ = ["MAX_QUESTIONS", "Prompt", "check_terminal"]

MAX_QUESTIONS = 16
_LINE_BYTES = 1_024


class Decide(Protocol):
    """Callback that passes the owner's answer to the device that asks to join the group."""

    def __call__(self, address: Address, *, is_admitted: bool) -> bool:
        """Admit or refuse the device at *address*; return whether it still waits."""
        ...


def check_terminal() -> None:
    """Refuse --ask if standard input is not a terminal."""
    if not sys.stdin.isatty():
        allowed = "a terminal to answer on, or --allow or --anyone in its place"
        raise InvalidValueError("--ask", Phrase("standard input that is not a terminal"), allowed)


class Prompt:
    """Questions to the owner on standard error; answers are lines of standard input."""

    def __init__(self, decide: Decide, *, patience_s: float) -> None:
        self._decide, self._patience_s = decide, patience_s
        self._waiting: deque[tuple[Address, str]] = deque()
        self._latest: dict[Address, str] = {}
        """Latest question of each device; answers to its older questions are void."""
        self._asked_at: dict[tuple[Address, str], float] = {}

    def ask(self, address: Address, reason: str, *, now: float) -> None:
        """Queue a question about the device at *address*; *now* is in seconds."""
        question = address, reason
        self._drop_old(now)
        if question not in self._waiting and len(self._waiting) >= MAX_QUESTIONS:
            self._decide(address, is_admitted=False)
            return
        self._latest[address], self._asked_at[question] = reason, now
        if question in self._waiting:
            return  # the device returned; its question stays in the queue
        self._waiting.append(question)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read)
            self._show()

    def _drop_old(self, now: float) -> None:
        """Remove questions of devices that gave up, except the question on the terminal."""
        for question in list(self._waiting)[1:]:
            if self._asked_at[question] + self._patience_s <= now:
                self._waiting.remove(question)
                self._forget(question)

    def _forget(self, question: tuple[Address, str]) -> bool:
        """Remove a question; return whether it was the latest about its device."""
        address, reason = question
        del self._asked_at[question]
        is_latest = self._latest.get(address) == reason
        if is_latest:
            del self._latest[address]
        return is_latest

    def _show(self) -> None:
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        address, reason = self._waiting[0]
        typer.echo(f"{address} asks to join; {reason}. Admit it? [y/n]", err=True)

    def _read(self) -> None:
        line = os.read(sys.stdin.fileno(), _LINE_BYTES).decode(errors="replace")  # a terminal delivers whole lines
        self.answer(line)
        if not line or not self._waiting:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())

    def answer(self, line: str) -> None:
        """Process a line that the owner typed; an empty line without a line end is the end of input."""
        word = line.strip().lower()
        if line and word not in {"y", "yes", "n", "no"}:
            self._show()
            return
        question = self._waiting.popleft()
        address, is_latest = question[0], self._forget(question)
        if not (is_latest and self._decide(address, is_admitted=word in {"y", "yes"})):
            typer.echo(f"{address} does not wait any more", err=True)
        if self._waiting:
            if line:
                self._show()
            else:
                self.answer(line)
