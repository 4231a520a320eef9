"""The driver runs procedures: generators of the core that yield what they wait for.

CONNECT and the requests to named sessions wait for the disk, for passwords and for each other. Written as procedures,
each is read from top to bottom:

    yield ACCEPTED                         # until everything that was entered so far is accepted
    yield Entered((fact,), is_owed=True)   # writes the fact; goes on when it is time to apply it
    yield                                  # ends one piece of applying it
    answer, now = yield Asked(…)           # until a thread of the shell has the answer

Rule: a procedure that goes on after ``Entered`` applies its facts, whether or not its client is still connected. After
``Asked`` it counts the answer first (a wrong password counts although the client left), and looks for its client then.
Rule: a question about passwords waits in the fair turns of ``BlockingTasks``. If too many wait, or the client gave too
many wrong passwords, ``ProtocolError`` is raised where the procedure waits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from whimbrel.broker.waiting.blocking_tasks import Asker, BlockingTasks
from whimbrel.broker.waiting.commit_queue import CommitQueue, Pieces
from whimbrel.broker.waiting.long_work import LongWork
from whimbrel.broker.wire.clients import Link
from whimbrel.model.facts import Fact
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError

__all__ = ["ACCEPTED", "NEXT", "Asked", "Driver", "Entered", "Procedure", "Wait", "Worked", "answer_to"]

_Answer = TypeVar("_Answer")
_Result = TypeVar("_Result")


class _Accepted(NamedTuple):
    """Wait until everything that was entered so far is accepted."""


class Entered(NamedTuple):
    """Write *facts*, one behind the other, and wait until the first is to be applied; for each other yield ``NEXT``."""

    facts: Sequence[Fact]
    is_owed: bool


class _Next(NamedTuple):
    """Wait until the next of the facts that were entered together is to be applied."""


class Asked(NamedTuple):
    """Wait for the answer of *ask*, which takes long and runs in a thread; *refusal* is told to who tried too often."""

    link: Link
    asker: Asker
    ask: Callable[[], object]
    refusal: str


class Worked(NamedTuple):
    """Wait until the *pieces* of long work for a link are done, and for what they return."""

    link: Link
    pieces: Generator[None, None, object]


ACCEPTED: Final = _Accepted()
NEXT: Final = _Next()
Wait: TypeAlias = _Accepted | Entered | _Next | Asked | Worked | None
Procedure: TypeAlias = Generator[Wait, Any, _Result]
"""None ends a piece of a fact that is being applied."""


def answer_to(link: Link, asker: Asker, ask: Callable[[], _Answer], refusal: str) -> Procedure[tuple[_Answer, int]]:
    """Return the answer of *ask*, and the time when it came."""
    answer, now = yield Asked(link, asker, ask, refusal)
    return answer, now


class Driver:
    """Everything that procedures wait for."""

    def __init__(self, commits: CommitQueue, tasks: BlockingTasks, long_work: LongWork) -> None:
        self._commits, self._tasks, self._long_work = commits, tasks, long_work

    def start(self, procedure: Procedure[None]) -> None:
        """Run *procedure* as far as it does not have to wait."""
        self._resume(procedure, None)

    def _resume(self, procedure: Procedure[None], value: object) -> None:
        for _ in self._pieces(procedure, value):
            raise AssertionError("only a fact is applied in pieces")

    def _pieces(self, procedure: Procedure[None], value: object = None) -> Pieces:
        """Run *procedure* until it waits, yielding after each piece of a fact that it applies."""
        try:
            wait = procedure.send(value)
            while wait is None:
                yield
                wait = next(procedure)
        except StopIteration:
            return
        self._arrange(procedure, wait)

    def _arrange(self, procedure: Procedure[None], wait: Wait) -> None:
        """Let *procedure* go on when what it waits for is there."""
        match wait:
            case _Accepted():
                self._commits.then(partial(self._resume, procedure, None))
            case Entered():
                for fact in wait.facts:
                    self._commits.enter(fact, partial(self._pieces, procedure), is_owed=wait.is_owed)
            case Asked():
                self._ask(procedure, wait)
            case Worked():
                self._long_work.begin(wait.link, self._working(procedure, wait))

    def _ask(self, procedure: Procedure[None], asked: Asked) -> None:
        if self._tasks.is_full(asked.link.address):
            self._fail(procedure, ReasonCode.SERVER_BUSY, "too many wait for their passwords")
            return
        refuse = partial(self._fail, procedure, ReasonCode.QUOTA_EXCEEDED, asked.refusal)
        self._tasks.put(asked.asker, asked.ask, partial(self._answered, procedure), refuse, asked.link.is_here)

    def _answered(self, procedure: Procedure[None], answer: object, now: int) -> None:
        self._resume(procedure, (answer, now))

    def _fail(self, procedure: Procedure[None], code: ReasonCode, reason: str) -> None:
        """Raise ``ProtocolError`` where *procedure* waits; it ends there, but may wait again."""
        try:
            wait = procedure.throw(ProtocolError(code, reason))
        except StopIteration:
            return
        self._arrange(procedure, wait)

    def _working(self, procedure: Procedure[None], worked: Worked) -> Pieces:
        result = yield from worked.pieces
        self._resume(procedure, result)
