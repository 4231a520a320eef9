"""The driver: procedures go on when what they wait for is there, in the order of the log."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from whimbrel.broker.limits.counters import Counters
from whimbrel.broker.waiting.blocking_tasks import BlockingTasks, RequesterId
from whimbrel.broker.waiting.commit_queue import CommitQueue
from whimbrel.broker.waiting.driver import ACCEPTED, NEXT, Append, Driver, Procedure, SlicedWork, answer_to
from whimbrel.broker.waiting.long_work import LongWork
from whimbrel.broker.wire.clients import Link
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import PresenceChange, PresenceChanged
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.server import ServerConnection, ServerLimits


class _Rig:
    """A driver and everything it waits for, without a broker."""

    def __init__(self, folder: Path, *, most: int = 4) -> None:
        self.log = LogWriter(folder, "n")
        self.log.open()
        self.commits = CommitQueue(self.log)
        self.tasks = BlockingTasks(1, Counters(), most=most)
        self.long_work = LongWork(lambda _: None)
        self.driver = Driver(self.commits, self.tasks, self.long_work)
        self.link = Link(ServerConnection(ServerLimits()), None, "here", verified_user=None)
        self.seen: list[object] = []

    def left(self, device: str, place: int = 0) -> PresenceChanged:
        """Return a fact, numbered *place* behind the next."""
        seq = self.commits.seq + place
        return PresenceChanged(node="n", seq=seq, changed_at=1, device=device, change=PresenceChange.LEFT, session="s")

    def answer_next(self) -> None:
        """Do what a thread of the shell does."""
        task = self.tasks.next(0)
        assert task is not None
        task.then(task.ask(), 7)


def test_a_fact_is_applied_when_it_is_durable_and_in_pieces(tmp_path: Path) -> None:
    """The commit queue sees the pieces of a procedure as those of any fact."""
    rig = _Rig(tmp_path)

    def procedure() -> Procedure[None]:
        rig.seen.append("begun")
        yield Append((rig.left("a"),), is_owed=True)
        rig.seen.append("first piece")
        yield None
        rig.seen.append("second piece")

    rig.driver.start(procedure())
    assert rig.seen == ["begun"]
    rig.commits.durable(1)
    assert rig.seen == ["begun", "first piece"]
    assert (rig.commits.is_applying, rig.commits.applied) == (True, 0)
    rig.commits.go_on()
    assert rig.seen[-1] == "second piece"
    assert (rig.commits.is_applying, rig.commits.applied) == (False, 1)


def test_facts_that_are_entered_together_are_neighbours_in_the_log(tmp_path: Path) -> None:
    """CONNECT joins several sessions, and no other fact comes between."""
    rig = _Rig(tmp_path)

    def procedure(names: str) -> Procedure[None]:
        yield Append(tuple(rig.left(name, place) for place, name in enumerate(names)), is_owed=True)
        rig.seen.append(names[0])
        for name in names[1:]:
            yield NEXT
            rig.seen.append(name)

    rig.driver.start(procedure("abc"))
    rig.driver.start(procedure("de"))
    assert rig.commits.seq == 6
    rig.commits.durable(2)
    assert rig.seen == ["a", "b"]
    rig.commits.durable(5)
    assert rig.seen == ["a", "b", "c", "d", "e"]


def test_accepted_waits_for_all_that_was_entered_before(tmp_path: Path) -> None:
    """Where nothing waits it goes on at once."""
    rig = _Rig(tmp_path)

    def procedure() -> Procedure[None]:
        yield ACCEPTED
        rig.seen.append("at once" if not rig.commits.applied else "after the fact")

    rig.driver.start(procedure())
    fact = rig.left("a")
    rig.commits.enter(fact, lambda: None, is_owed=True)
    rig.driver.start(procedure())
    assert rig.seen == ["at once"]
    rig.commits.durable(1)
    assert rig.seen == ["at once", "after the fact"]


def test_an_answer_comes_with_its_time(tmp_path: Path) -> None:
    """The time is that of the answer, not of the question."""
    rig = _Rig(tmp_path)

    def procedure() -> Procedure[None]:
        rig.seen.append((yield from answer_to(rig.link, RequesterId("here", "u", ("u",)), lambda: 42, "too often")))

    rig.driver.start(procedure())
    assert not rig.seen
    rig.answer_next()
    assert rig.seen == [(42, 7)]


def test_who_tried_too_often_and_who_finds_no_place_in_the_queue_get_an_error_where_they_wait(tmp_path: Path) -> None:
    """A procedure can answer its client with the reason."""
    rig = _Rig(tmp_path, most=2)  # of one address half of them

    def procedure(name: str) -> Procedure[None]:
        asker = RequesterId("here", name, (name,))
        try:
            is_right, _ = yield from answer_to(rig.link, asker, lambda: False, "too often")
            rig.tasks.learn(asker, is_right=is_right)
        except ProtocolError as error:
            rig.seen.append((name, error.reason))

    rig.driver.start(procedure("a"))
    rig.driver.start(procedure("b"))
    assert rig.seen == [("b", "too many wait for their passwords")]
    rig.answer_next()
    rig.driver.start(procedure("a"))
    assert rig.tasks.next(0) is None
    assert rig.seen[1:] == [("a", "too often")]


def test_a_question_of_a_client_that_left_is_not_asked(tmp_path: Path) -> None:
    """Verifying a password takes most of a second."""
    rig = _Rig(tmp_path)

    def procedure() -> Procedure[None]:
        yield from answer_to(rig.link, RequesterId("here", "u"), lambda: rig.seen.append("asked"), "too often")

    rig.driver.start(procedure())
    rig.link.closing = "it left"
    assert rig.tasks.next(0) is None
    assert not rig.seen


def test_long_work_is_done_a_piece_a_turn_and_returns_its_result(tmp_path: Path) -> None:
    """The packets behind wait for it, as for other long work."""
    rig = _Rig(tmp_path)

    def pieces() -> Generator[None, None, str]:
        yield
        yield
        return "read"

    def procedure() -> Procedure[None]:
        rig.seen.append((yield SlicedWork(rig.link, pieces())))

    rig.driver.start(procedure())
    rig.long_work.go_on()
    assert not rig.seen
    rig.long_work.go_on()
    assert rig.seen == ["read"]
