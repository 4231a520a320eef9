"""Assembly of answers from their chunks.

Rule: an answer has one sender, one sample and one number of copies. A chunk that contradicts earlier ones discards them
and starts the answer again.
Rule: at most ``MAX_BEGUN`` answers are incomplete at a time; the one without a chunk for the longest time is discarded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from whimbrel.carry.hello import Answer, SampleId
from whimbrel.carry.wire import AnswerChunk, read_record

__all__ = ["MAX_BEGUN", "AnswerAssembly"]

MAX_BEGUN = 32
"""Most incomplete answers at a time, each of at most 1,097 bytes."""


@dataclass(slots=True)
class _Begun:
    copies: int
    record_bytes: int
    chunks: dict[int, bytes] = field(default_factory=dict)

    def add(self, part: AnswerChunk) -> bool:
        """Add a chunk; return whether it agrees with the chunks before it."""
        if (part.copies, part.record_bytes) != (self.copies, self.record_bytes):
            return False
        end = part.offset + len(part.chunk)
        for offset, chunk in self.chunks.items():
            if offset < end and part.offset < offset + len(chunk):
                return (offset, chunk) == (part.offset, part.chunk)  # the same one again, or one that overlaps
        self.chunks[part.offset] = part.chunk
        return True

    @property
    def is_whole(self) -> bool:
        """Whether all bytes have come; no two chunks overlap."""
        return sum(map(len, self.chunks.values())) == self.record_bytes


class AnswerAssembly:
    """The incomplete answers at a node."""

    def __init__(self) -> None:
        self._begun: dict[tuple[int, int, SampleId], _Begun] = {}

    def __len__(self) -> int:
        return len(self._begun)

    def add(self, sender: int, part: AnswerChunk) -> Answer | None:
        """Return the answer that *part* of *sender* completes, or None while chunks are missing.

        Raises ``MalformedMessageError`` if the complete answer is not a valid sample.
        """
        name = sender, part.topic, part.id
        begun = self._begun.pop(name, None)
        if begun is None or not begun.add(part):
            begun = _Begun(part.copies, part.record_bytes)
            begun.add(part)
        if begun.is_whole:
            record = b"".join(begun.chunks[offset] for offset in sorted(begun.chunks))
            return Answer(read_record(record, topic=part.topic, sample_id=part.id), part.copies)
        self._begun[name] = begun
        if len(self._begun) > MAX_BEGUN:
            del self._begun[next(iter(self._begun))]
        return None

    def forget(self, sender: int) -> None:
        """Discard the incomplete answers of *sender*, which is out of reach."""
        for name in [name for name in self._begun if name[0] == sender]:
            del self._begun[name]
