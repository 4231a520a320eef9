"""Rules of a participant: its settings in the form that the cores need, with times in microseconds."""

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
    """Public keys of trusted publishers; other samples are refused. None: all samples are taken, as in the paper."""
    frames: tuple[int, int] = (200, 400)
    """Frames of one neighbour that are handled, per second and at once; of all together, ten times as many."""
    answers: tuple[int, int] = (20, 128)
    """Requests of one neighbour that are answered, per second and at once; all together may have ten times as many."""
    requests: tuple[int, int] = (20, 128)
    """Requests that are sent to one neighbour, per second and at once; to all, ten times as many."""

    def __post_init__(self) -> None:
        whole("copies", self.copies, 1, MAX_COPIES)
        whole("hello_us", self.hello_us, 1_000, 3_600 * US_PER_S)

    @property
    def answer_us(self) -> int:
        """Time after which a request without an answer is given up."""
        return max(2 * self.hello_us, 2 * US_PER_S)

    @property
    def repeat_us(self) -> int:
        """Time after which a request or a grant is repeated."""
        return max(self.hello_us // 2, US_PER_S // 5)

    @property
    def grant_us(self) -> int:
        """Time for which a grant is repeated and waits for its acknowledgement; enough if a third of frames is lost."""
        return max(10 * self.hello_us, 10 * US_PER_S)

    @property
    def silence_us(self) -> int:
        """Time without a Hello after which a neighbour is out of reach."""
        return max(3 * self.hello_us, 3 * US_PER_S)
