"""The driver runs procedures: generators (coroutines) of the core that yield the events that they wait for.

CONNECT and the requests to named sessions wait for fsync, for password checks and for each other. A procedure can be
read from top to bottom, unlike a chain of callbacks:

    yield ACCEPTED                         # wait until all facts entered so far are accepted
    yield Append((fact,), is_owed=True)    # append the fact to the log; wait until it is to be applied
    yield                                  # one step of applying the fact is done
    answer, now = yield BlockingCall(…)    # wait for the result of a function that runs in a worker thread

Rule: after ``Append`` a procedure applies its facts, whether or not its client is still connected. After
``BlockingCall`` it counts the answer first (a wrong password counts even if the client is gone), and then checks if the
client is still connected.
Rule: password checks wait in the fair queue of ``BlockingTasks``. If the queue is full, or the client gave too many
wrong passwords, ``ProtocolError`` is raised in the procedure at its ``yield``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from whimbrel.broker.waiting.blocking_tasks import BlockingTasks, RequesterId
from whimbrel.broker.waiting.commit_queue import CommitQueue, Pieces
from whimbrel.broker.waiting.long_work import LongWork
from whimbrel.broker.wire.clients import Link
from whimbrel.model.facts import Fact
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError

__all__ = ["ACCEPTED", "NEXT", "Append", "BlockingCall", "Driver", "Procedure", "SlicedWork", "Wait", "answer_to"]

_Answer = TypeVar("_Answer")
_Result = TypeVar("_Result")


class _Accepted(NamedTuple):
    """Request to wait until all facts (log records) entered so far are accepted (see ``commit_queue``)."""


class Append(NamedTuple):
    """Request to append *facts* (log records) to the log, and wait until the first is to be applied.

    To wait for each of the others, the procedure yields ``NEXT``. *is_owed*: the facts must be durable (fsynced) before
    they are applied.
    """

    facts: Sequence[Fact]
    is_owed: bool


class _Next(NamedTuple):
    """Request to wait until the next fact (log record) of the same ``Append`` is to be applied."""


class BlockingCall(NamedTuple):
    """Request to run *ask*, which takes long, in a worker thread and wait for its answer.

    A client that gave too many wrong passwords gets ``ProtocolError`` (QUOTA_EXCEEDED) with *refusal* as the reason.
    """

    link: Link
    asker: RequesterId
    ask: Callable[[], object]
    refusal: str


class SlicedWork(NamedTuple):
    """Request to run the generator *pieces*, long work for a connection, and wait for its return value."""

    link: Link
    pieces: Generator[None, None, object]


ACCEPTED: Final = _Accepted()
NEXT: Final = _Next()
Wait: TypeAlias = _Accepted | Append | _Next | BlockingCall | SlicedWork | None
Procedure: TypeAlias = Generator[Wait, Any, _Result]
"""A generator of the core that the driver runs; it yields None after each step of applying a fact."""


def answer_to(
    link: Link, asker: RequesterId, ask: Callable[[], _Answer], refusal: str
) -> Procedure[tuple[_Answer, int]]:
    """Run *ask* in a worker thread (see ``BlockingCall``); return its answer, and the time when the answer came."""
    answer, now = yield BlockingCall(link, asker, ask, refusal)
    return answer, now


class Driver:
    """Runs procedures, and resumes each when the event that it waits for has happened."""

    def __init__(self, commits: CommitQueue, tasks: BlockingTasks, long_work: LongWork) -> None:
        self._commits, self._tasks, self._long_work = commits, tasks, long_work

    def start(self, procedure: Procedure[None]) -> None:
        """Run the generator *procedure* until it first has to wait."""
        self._resume(procedure, None)

    def _resume(self, procedure: Procedure[None], value: object) -> None:
        for _ in self._pieces(procedure, value):
            raise AssertionError("only a fact is applied in pieces")

    def _pieces(self, procedure: Procedure[None], value: object = None) -> Pieces:
        """Resume *procedure* with *value* and run it until it waits; yield after each step of applying a fact."""
        try:
            wait = procedure.send(value)
            while wait is None:
                yield
                wait = next(procedure)
        except StopIteration:
            return
        self._arrange(procedure, wait)

    def _arrange(self, procedure: Procedure[None], wait: Wait) -> None:
        """Arrange that *procedure* (a generator) is resumed when the event *wait* has happened."""
        match wait:
            case _Accepted():
                self._commits.then(partial(self._resume, procedure, None))
            case Append():
                for fact in wait.facts:
                    self._commits.enter(fact, partial(self._pieces, procedure), is_owed=wait.is_owed)
            case BlockingCall():
                self._ask(procedure, wait)
            case SlicedWork():
                self._long_work.begin(wait.link, self._working(procedure, wait))

    def _ask(self, procedure: Procedure[None], asked: BlockingCall) -> None:
        if self._tasks.is_full(asked.link.address):
            self._fail(procedure, ReasonCode.SERVER_BUSY, "too many wait for their passwords")
            return
        refuse = partial(self._fail, procedure, ReasonCode.QUOTA_EXCEEDED, asked.refusal)
        self._tasks.put(asked.asker, asked.ask, partial(self._on_answer, procedure), refuse, asked.link.is_here)

    def _on_answer(self, procedure: Procedure[None], answer: object, now: int) -> None:
        self._resume(procedure, (answer, now))

    def _fail(self, procedure: Procedure[None], code: ReasonCode, reason: str) -> None:
        """Raise ``ProtocolError`` in *procedure* at its ``yield``; the procedure may end, or wait for another event."""
        try:
            wait = procedure.throw(ProtocolError(code, reason))
        except StopIteration:
            return
        self._arrange(procedure, wait)

    def _working(self, procedure: Procedure[None], worked: SlicedWork) -> Pieces:
        result = yield from worked.pieces
        self._resume(procedure, result)
