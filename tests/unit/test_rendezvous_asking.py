"""The prompt of a group's owner: one question at a time, and an answer for the key that it named only."""

from __future__ import annotations

import asyncio
import os
import pty
from collections.abc import Callable, Iterator

import pytest
from tests.unit.rendezvous_rig import ALICE, BOB, CAROL

from whimbrel.cli.rendezvous.asking import MAX_QUESTIONS, Prompt
from whimbrel.rendezvous.events import Address

Decided = list[tuple[Address, bool]]


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make standard input a terminal on which nobody types."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, encoding="utf-8") as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        yield
    os.close(ours)


def decided(do: Callable[[Prompt], None]) -> Decided:
    """Return what an owner decided in *do*, whose devices all wait for a minute."""
    found: Decided = []

    def decide(address: Address, *, is_admitted: bool) -> bool:
        found.append((address, is_admitted))
        return True

    async def run() -> None:
        do(Prompt(decide, patience_s=60))

    asyncio.run(run())
    return found


@pytest.mark.usefixtures("on_terminal")
def test_questions_are_asked_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    """Yes admits, no does not, anything else is asked again."""

    def do(prompt: Prompt) -> None:
        prompt.ask(ALICE, "key a", now=0)
        prompt.ask(BOB, "key b", now=1)
        for line in ("what?\n", "y\n", "No\n"):
            prompt.answer(line)

    assert decided(do) == [(ALICE, True), (BOB, False)]
    shown = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in shown] == [ALICE, ALICE, BOB]
    assert "key a" in shown[0]


@pytest.mark.usefixtures("on_terminal")
def test_a_yes_for_one_key_admits_no_other_key_at_that_address(capsys: pytest.CaptureFixture[str]) -> None:
    """While the owner thinks about Alice, somebody connects from her address with a key of its own."""

    def do(prompt: Prompt) -> None:
        prompt.ask(ALICE, "key a", now=0)
        prompt.ask(ALICE, "key x", now=1)
        prompt.answer("y\n")
        prompt.answer("n\n")

    assert decided(do) == [(ALICE, False)]
    assert "does not wait any more" in capsys.readouterr().err


@pytest.mark.usefixtures("on_terminal")
def test_a_device_that_comes_back_with_its_key_is_asked_about_once() -> None:
    """Its connection was lost before the owner had answered."""

    def do(prompt: Prompt) -> None:
        for now in range(3):
            prompt.ask(ALICE, "key a", now=now)
        prompt.answer("y\n")
        prompt.ask(ALICE, "key a", now=4)
        prompt.answer("n\n")

    assert decided(do) == [(ALICE, True), (ALICE, False)]


@pytest.mark.usefixtures("on_terminal")
def test_the_end_of_input_admits_nobody() -> None:
    """The terminal was closed: each device that waits is refused."""

    def do(prompt: Prompt) -> None:
        for who in (ALICE, BOB, CAROL):
            prompt.ask(who, "a key", now=0)
        prompt.answer("")

    assert decided(do) == [(ALICE, False), (BOB, False), (CAROL, False)]


@pytest.mark.usefixtures("on_terminal")
def test_questions_that_wait_are_bounded_and_old_ones_make_room() -> None:
    """One that finds no place is refused; a minute later those before it have given up, and it is asked about."""

    def do(prompt: Prompt) -> None:
        for number in range(MAX_QUESTIONS):
            prompt.ask(Address(f"02:00:00:00:01:{number:02X}"), "a key", now=0)
        prompt.ask(BOB, "key b", now=59)
        prompt.ask(BOB, "key b", now=60)
        prompt.answer("n\n")
        prompt.answer("y\n")

    assert decided(do) == [(BOB, False), (Address("02:00:00:00:01:00"), False), (BOB, True)]
