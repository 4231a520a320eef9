"""Long work: work for one packet that would block the event loop for too long, done in steps over several turns.

Rule: the work is a generator of the core that yields after each step. Its first step is done at once, so short work
is finished without a wait.
Rule: a turn of the event loop does one step of one client's work, and the clients take turns (round robin). A client
waits for one step of each other client, however much work they requested.
Rule: while work for a link is unfinished, later packets of the link wait: one client's packets are handled in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from whimbrel.broker.wire.clients import Link

__all__ = ["PIECE", "LongWork"]

_MAX_SHORT = 8
"""Most works that may do one step each in one turn, such as a search for retained messages, which takes up to 3 ms."""

PIECE = 100
"""Cost of one step, in the units of ``work_budget``: 3 to 5 ms on the machine of bench/results."""


class _Work(NamedTuple):
    pieces: Iterator[None]
    holds_packets: bool


class LongWork:
    """Scheduler of all connections' unfinished work; it calls *resume* when a connection's packets may go on."""

    def __init__(self, resume: Callable[[Link], None]) -> None:
        self._resume = resume
        self.unfinished: dict[Link, deque[_Work]] = {}
        """Unfinished works by link, in the order of the links' turns."""
        self.tried = 0
        """Number of works begun in this turn that do not make packets wait; reset to 0 when a turn begins."""

    def __bool__(self) -> bool:
        return bool(self.unfinished)

    def begin(self, link: Link, pieces: Iterator[None], *, holds_packets: bool = True) -> None:
        """Do the first step of the generator *pieces*, and schedule the other steps for later turns.

        If *holds_packets*, later packets of the connection *link* wait until the work is done. Work that does not make
        packets wait is postponed as a whole if the link has other work, or if much work was begun in this turn.
        """
        self.tried += not holds_packets
        is_late = link.is_busy if holds_packets else link in self.unfinished or self.tried > _MAX_SHORT
        if is_late or _is_unfinished(pieces):
            works = self.unfinished.setdefault(link, deque())
            if holds_packets:  # it goes before the link's other work, because the client waits for its answer
                link.is_busy = True
                works.appendleft(_Work(pieces, holds_packets))
            else:
                works.append(_Work(pieces, holds_packets))

    def go_on(self) -> None:
        """Do one step of work for the connection whose turn it is, or finish several short works of it."""
        link = next(iter(self.unfinished), None)
        if link is None:
            return
        works = self.unfinished[link]
        for _ in range(min(len(works), _MAX_SHORT)):
            work = works.popleft()  # before it is done: it may begin other work for the link
            if link.closing is None and _is_unfinished(work.pieces):
                if work.holds_packets:
                    works.appendleft(work)
                else:
                    works.append(work)
                break
            if not works:
                del self.unfinished[link]
            self._finish(link, work)
            if work.holds_packets:  # the packets that waited for it were this turn's work
                break
        if works and link in self.unfinished:  # the next turns are those of the other links
            self.unfinished[link] = self.unfinished.pop(link)

    def _finish(self, link: Link, work: _Work) -> None:
        if link.closing is not None:  # no client waits for the answer
            link.is_busy = False
        elif work.holds_packets:
            link.is_busy = False
            self._resume(link)


def _is_unfinished(pieces: Iterator[None]) -> bool:
    return next(pieces, pieces) is None
