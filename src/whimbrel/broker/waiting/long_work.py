"""Long work: what one packet asks for and would keep the event loop for too long, done one piece a turn.

Rule: work is a generator of the core that yields after each piece. Its first piece is done at once, so that what is
short is done as if there were no pieces.
Rule: a turn of the loop does one piece of one client's work, and the clients take turns: a client waits behind one
piece of each of the others, however much they asked for.
Rule: while work for a link is unfinished, the packets that came behind wait: one client's packets are handled in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from whimbrel.broker.wire.clients import Link

__all__ = ["PIECE", "LongWork"]

_MAX_SHORT = 8
"""How many works may be one piece each in one turn: a look for retained messages is, and takes up to 3 ms."""

PIECE = 100
"""The counted cost of a piece (see ``work_budget``): 3 to 5 ms on the machine of bench/results."""


class _Work(NamedTuple):
    pieces: Iterator[None]
    holds_packets: bool


class LongWork:
    """The unfinished work of all links; *resume* is called with a link whose work is done."""

    def __init__(self, resume: Callable[[Link], None]) -> None:
        self._resume = resume
        self._unfinished: dict[Link, deque[_Work]] = {}
        """By link; the first is the one whose turn it is."""
        self.tried = 0
        """How many works that hold no packets were begun in this turn; set to 0 where a turn begins."""

    def __bool__(self) -> bool:
        return bool(self._unfinished)

    def begin(self, link: Link, pieces: Iterator[None], *, holds_packets: bool = True) -> None:
        """Do the first of *pieces*; the others follow, and the link's packets wait if it *holds_packets*.

        What holds no packets waits with its first piece as well, if there is other work for the link or much was begun
        in this turn.
        """
        self.tried += not holds_packets
        is_late = link.is_busy if holds_packets else link in self._unfinished or self.tried > _MAX_SHORT
        if is_late or _is_unfinished(pieces):
            works = self._unfinished.setdefault(link, deque())
            if holds_packets:  # it comes first: the client waits for its answer
                link.is_busy = True
                works.appendleft(_Work(pieces, holds_packets))
            else:
                works.append(_Work(pieces, holds_packets))

    def go_on(self) -> None:
        """Do one piece, or a few works that turn out to be short."""
        link = next(iter(self._unfinished), None)
        if link is None:
            return
        works = self._unfinished[link]
        for _ in range(min(len(works), _MAX_SHORT)):
            work = works.popleft()  # before it is done: it may begin other work for the link
            if link.closing is None and _is_unfinished(work.pieces):
                if work.holds_packets:
                    works.appendleft(work)
                else:
                    works.append(work)
                break
            if not works:
                del self._unfinished[link]
            self._finish(link, work)
            if work.holds_packets:  # the packets that waited for it were this turn's work
                break
        if works and link in self._unfinished:  # the others come first
            self._unfinished[link] = self._unfinished.pop(link)

    def _finish(self, link: Link, work: _Work) -> None:
        if link.closing is not None:  # no client waits for the answer
            link.is_busy = False
        elif work.holds_packets:
            link.is_busy = False
            self._resume(link)


def _is_unfinished(pieces: Iterator[None]) -> bool:
    return next(pieces, pieces) is None
