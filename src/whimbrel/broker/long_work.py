"""Long work: what one packet asks for and would keep the event loop for too long, done one piece a turn.

Rule: work is a generator of the core that yields after each piece. Its first piece is done at once, so that what is
short is done as if there were no pieces.
Rule: a turn of the loop does one piece of one client's work, and the clients take turns: a client waits behind one
piece of each of the others, however much they asked for.
Rule: while work for a link is unfinished, the packets that came behind wait: one client's packets are handled in order.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator

from whimbrel.broker.clients import Link

__all__ = ["PIECE", "LongWork"]

PIECE = 200
"""The counted cost of a piece (see ``work_budget``): 5 to 10 ms on the machine of bench/results."""


class LongWork:
    """The unfinished work of all links; *resume* is called with a link whose work is done."""

    def __init__(self, resume: Callable[[Link], None]) -> None:
        self._resume = resume
        self._unfinished: deque[tuple[Link, Iterator[None], bool]] = deque()
        self._working: Counter[Link] = Counter()
        """How much of it each link has."""

    def __len__(self) -> int:
        return len(self._unfinished)

    def begin(self, link: Link, work: Iterator[None], *, holds_packets: bool = True) -> None:
        """Do the first piece of *work*; the others follow, and the link's packets wait if it *holds_packets*.

        If there is other work for the link, the first piece waits its turn as well.
        """
        if self._working[link] or _is_unfinished(work):
            link.is_busy = link.is_busy or holds_packets
            self._working[link] += 1
            self._unfinished.append((link, work, holds_packets))

    def go_on(self) -> None:
        """Do one piece."""
        if not self._unfinished:
            return
        link, work, holds_packets = self._unfinished.popleft()
        if link.closing is None and _is_unfinished(work):
            self._unfinished.append((link, work, holds_packets))
            return
        self._working[link] -= 1
        if not self._working[link]:
            del self._working[link]
        if link.closing is not None:  # nobody waits for the answer
            link.is_busy = False
        elif holds_packets:
            link.is_busy = False
            self._resume(link)


def _is_unfinished(work: Iterator[None]) -> bool:
    return next(work, work) is None
