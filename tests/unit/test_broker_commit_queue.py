"""The commit queue: facts are applied in the order of their numbers, when they are accepted."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from whimbrel.broker.waiting.commit_queue import CommitQueue
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import SessionChange, SessionChanged


class Told:
    """A commit queue that tells what it applied, and the log under it."""

    def __init__(self, log: LogWriter) -> None:
        self.log, self.commits = log, CommitQueue(log)
        self.applied: list[str] = []

    def enter(self, name: str, *, is_owed: bool) -> None:
        """Enter a fact that is known by *name*."""
        fact = SessionChanged(
            node=self.commits.node,
            seq=self.commits.seq,
            changed_at=self.commits.now(1_000),
            session=name,
            change=SessionChange.CREATED,
        )
        self.commits.enter(fact, partial(self.applied.append, name), is_owed=is_owed)

    def then(self, name: str) -> None:
        """Have something done that is no fact."""
        self.commits.then(partial(self.applied.append, name))


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    """Yield a commit queue on an empty log."""
    with LogWriter(tmp_path, "node-1") as log:
        yield Told(log)


def test_what_nobody_is_owed_is_applied_at_once(told: Told) -> None:
    """Entered is accepted, where nobody could ask after a crash."""
    told.enter("live", is_owed=False)
    told.then("answer")
    assert told.applied == ["live", "answer"]
    assert not told.commits.waiting


def test_what_is_owed_is_applied_when_it_is_durable(told: Told) -> None:
    """Persist before Ack."""
    told.enter("owed", is_owed=True)
    told.then("answer")
    assert told.applied == []
    told.commits.durable(told.log.sync())
    assert told.applied == ["owed", "answer"]


def test_nothing_overtakes_what_is_owed(told: Told) -> None:
    """A replay applies facts by number, so must whoever writes them."""
    told.enter("owed", is_owed=True)
    told.enter("live", is_owed=False)
    told.then("answer")
    assert told.applied == []
    told.commits.durable(told.log.sync())
    assert told.applied == ["owed", "live", "answer"]


def test_the_disk_accepts_no_more_than_it_has(told: Told) -> None:
    """What was entered while it worked waits for the next time."""
    told.enter("first", is_owed=True)
    told.then("answer")
    seq = told.log.sync()
    told.enter("second", is_owed=True)
    told.commits.durable(seq)
    assert told.applied == ["first", "answer"]
    assert told.commits.applied == seq


def test_what_an_application_enters_comes_after_what_waits(told: Told) -> None:
    """An answer may cause a fact; that has a higher number, and waits its turn."""
    told.enter("first", is_owed=True)
    told.commits.then(lambda: told.enter("caused", is_owed=False))
    told.enter("second", is_owed=True)
    told.commits.durable(told.log.sync())
    assert told.applied == ["first", "second"]
    told.commits.durable(told.log.sync())
    assert told.applied == ["first", "second", "caused"]


def test_applied_is_the_number_before_the_first_that_waits(told: Told) -> None:
    """A view may say so far, and a restart replays the rest."""
    assert told.commits.applied == told.log.next_seq - 1
    told.enter("live", is_owed=False)
    assert told.commits.applied == told.log.next_seq - 1
    told.enter("owed", is_owed=True)
    told.enter("live", is_owed=False)
    assert told.commits.applied == told.log.next_seq - 3


def test_the_time_never_goes_back(told: Told) -> None:
    """A clock that is set back stands still."""
    assert [told.commits.now(each) for each in (1_000, 900, 1_001)] == [1_000, 1_000, 1_001]
    assert told.commits.last_at == 1_001
