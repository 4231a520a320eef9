"""The clock of the campus: the node's own clock, corrected by way-servers (Campus++, section 3.1).

Rule: a node takes the time only from a way-server, in answer to its own question, and never from another neighbour, so
that the error of one clock does not spread. The paper leaves this open.
Rule: an answer counts if the campus signed it, it came in time, and it names the question and the node that asked.
Rule: the signatures of at most ``_MAX_WRONG`` wrong answers to a question are checked, because a check costs about
0.1 ms of core time and a neighbour can send hundreds of answers.
Rule: until a way-server has set the clock, samples may be a day in the future; afterwards a minute.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from whimbrel.carry.hello import NONCE_BYTES, TimeAnswer, TimeQuestion
from whimbrel.carry.signatures import SampleSigner, is_signature
from whimbrel.model.clock import US_PER_S

__all__ = ["ASK_AGAIN_US", "OWN_TOLERANCE_US", "SET_TOLERANCE_US", "CampusClock", "answer_time"]

OWN_TOLERANCE_US = 24 * 3_600 * US_PER_S
SET_TOLERANCE_US = 60 * US_PER_S
ASK_AGAIN_US = 10 * US_PER_S
_MAX_WAIT_US = 2 * US_PER_S
"""Longest wait for an answer; a later one is too inaccurate."""
_MAX_QUESTIONS = 16
_MAX_WRONG = 4
_MAX_ASKED = 256
_SIGNED = struct.Struct(f">{NONCE_BYTES}sQq")


def _signed_bytes(nonce: bytes, asker: int, at: int) -> bytes:
    return b"whimbrel carry: time 1\0" + _SIGNED.pack(nonce, asker, at)


def answer_time(signer: SampleSigner, asker: int, question: TimeQuestion, *, now: int) -> TimeAnswer:
    """Return the answer of a way-server to the node *asker*."""
    signature = signer.sign_bytes(_signed_bytes(question.nonce, asker, now))
    return TimeAnswer(question.nonce, now, signature)


@dataclass(slots=True)
class _Question:
    """A question about the time to *neighbour*, and the number of its answers with another signature."""

    neighbour: int
    asked_at: int
    wrong: int = 0


class CampusClock:
    """The time of a node: its own clock plus *offset_us*, its difference to the clock of the campus."""

    def __init__(
        self,
        *,
        offset_us: int = 0,
        set_at: int | None = None,
        own_tolerance_us: int = OWN_TOLERANCE_US,
        set_tolerance_us: int = SET_TOLERANCE_US,
    ) -> None:
        self.offset_us = offset_us
        self.set_at = set_at
        """Time at which a way-server set the clock, by the clock of the campus; None: never."""
        self._tolerances = own_tolerance_us, set_tolerance_us
        self._questions: OrderedDict[bytes, _Question] = OrderedDict()
        """The latest questions by nonce."""
        self._asked: OrderedDict[int, int] = OrderedDict()
        """Time of the last question to each neighbour, by the node's own clock."""

    @property
    def is_synchronised(self) -> bool:
        """Whether a way-server has set the clock."""
        return self.set_at is not None

    @property
    def tolerance_us(self) -> int:
        """Most microseconds that a sample may be in the future."""
        return self._tolerances[self.is_synchronised]

    def now(self, own: int) -> int:
        """Return the time of the campus when the node's own clock shows *own*."""
        return own + self.offset_us

    def ahead_us(self, published_at: int, *, own: int) -> int | None:
        """Return by how many microseconds *published_at* is ahead of now if that exceeds the tolerance, else None."""
        ahead_us = published_at - self.now(own)
        return ahead_us if ahead_us > self.tolerance_us else None

    def set(self, at: int, *, own: int) -> None:
        """Set the clock so that it shows *at* when the node's own clock shows *own*."""
        self.offset_us, self.set_at = at - own, at

    def ask(self, neighbour: int, nonce: bytes, *, own: int) -> TimeQuestion | None:
        """Return a question for *neighbour*, or None if it got one within ``ASK_AGAIN_US``."""
        asked = self._asked.get(neighbour)
        if asked is not None and own - asked < ASK_AGAIN_US:
            return None
        self._asked[neighbour] = own
        self._asked.move_to_end(neighbour)
        if len(self._asked) > _MAX_ASKED:
            self._asked.popitem(last=False)
        self._questions[nonce] = _Question(neighbour, own)
        if len(self._questions) > _MAX_QUESTIONS:
            self._questions.popitem(last=False)
        return TimeQuestion(nonce)

    def receive(self, sender: int, answer: TimeAnswer, *, asker: int, keys: Iterable[bytes], own: int) -> bool:
        """Set the clock by the answer of *sender* to the node *asker*; return whether the answer counts."""
        question = self._questions.get(answer.nonce)
        if question is None or question.neighbour != sender or not 0 <= own - question.asked_at <= _MAX_WAIT_US:
            return False
        if not is_signature(answer.signature, _signed_bytes(answer.nonce, asker, answer.at), keys):
            question.wrong += 1
            if question.wrong >= _MAX_WRONG:
                del self._questions[answer.nonce]
            return False
        del self._questions[answer.nonce]
        self.set(answer.at, own=own - (own - question.asked_at) // 2)
        return True
