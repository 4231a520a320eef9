"""Rules of a participant: its settings as the cores need them, with times in microseconds."""

from __future__ import annotations

from dataclasses import dataclass

from whimbrel.carry.hello import MAX_COPIES
from whimbrel.carry.node import PLACES
from whimbrel.carry.sight import Sight
from whimbrel.carry.signatures import SampleSigner
from whimbrel.model.bounds import whole
from whimbrel.model.clock import US_PER_S

__all__ = ["COPIES", "Rules"]

COPIES = 8
"""L of a topic without a plan: that of 100 equally popular topics in the paper's scenario."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings of a participant."""

    places: int = PLACES
    copies: int = COPIES
    hello_us: int = US_PER_S
    shows_retrieved: bool = False
    sight: Sight = Sight.FINAL
    signer: SampleSigner | None = None
    """Signs what the node publishes."""
    publishers: frozenset[bytes] | None = None
    """Public keys of the publishers whose samples are taken; None: everybody's, signed or not, as in the paper."""
    frames: tuple[int, int] = (200, 400)
    """Frames of one neighbour that are read, per second and at once."""
    answers: tuple[int, int] = (20, 128)
    """Requests of one neighbour that are answered, per second and at once; all together may have ten times as many."""
    requests: tuple[int, int] = (20, 128)
    """Requests that are sent to one neighbour, per second and at once; to all, ten times as many."""

    def __post_init__(self) -> None:
        whole("copies", self.copies, 1, MAX_COPIES)
        whole("hello_us", self.hello_us, 1_000, 3_600 * US_PER_S)

    @property
    def answer_us(self) -> int:
        """How long an answer is waited for."""
        return max(2 * self.hello_us, 2 * US_PER_S)

    @property
    def repeat_us(self) -> int:
        """How long after a request it may be repeated."""
        return max(self.hello_us // 2, US_PER_S // 5)

    @property
    def grant_us(self) -> int:
        """How long a grant waits for its acknowledgement, and is repeated: a third of all frames may be lost."""
        return max(10 * self.hello_us, 10 * US_PER_S)

    @property
    def silence_us(self) -> int:
        """How long a neighbour may say nothing until it is out of reach."""
        return max(3 * self.hello_us, 3 * US_PER_S)
