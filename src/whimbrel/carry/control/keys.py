"""Keys of a campus: the keys that a node trusts, and statements that replace a key while nodes are out of reach.

A *key statement* is a sample of the built-in topic with the highest publisher. Its body names the next key and the time
at which the one that signed it retires; carriers copy it from node to node like control data.

Rule: a node trusts the keys that it was given, and each key that a trusted one names before it retires.
Rule: after its retirement, by the clock of the campus, a key signs neither control data nor the time. Its statements
from before the retirement still count, so that a node that was away can follow the chain of keys.
Rule: only the newest ``MAX_STATEMENTS`` statements are kept.
Rule: a thief of a key can name another key. Nodes then need a new key by hand.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from whimbrel.carry.hello import MAX_PUBLISHER, Sample, SampleId
from whimbrel.carry.signatures import PUBLIC_BYTES, SampleSigner, is_signed_by
from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.model.bounds import INT64_MAX

__all__ = ["KEY_PUBLISHER", "MAX_STATEMENTS", "KeyRing", "key_statement"]

KEY_PUBLISHER = MAX_PUBLISHER
"""Publisher in the ids of key statements; segments of control data have small numbers there."""
MAX_STATEMENTS = 8
_BUILT_IN_TOPIC = 0
_STATEMENT = struct.Struct(f">B{PUBLIC_BYTES}sq")
_KIND = 1


def key_statement(signer: SampleSigner, new_key: bytes, *, at: int, retires_at: int) -> Sample:
    """Return the statement by which the key of *signer*, which retires at *retires_at*, names *new_key*."""
    if len(new_key) != PUBLIC_BYTES:
        raise InvalidValueError("public key", Phrase(f"{len(new_key)} bytes"), f"{PUBLIC_BYTES} bytes")
    body = _STATEMENT.pack(_KIND, new_key, retires_at)
    return signer.sign(Sample(topic=_BUILT_IN_TOPIC, published_at=at, publisher=KEY_PUBLISHER, body=body))


class KeyRing:
    """The keys that a node trusts; *keys* are those of its settings."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._retires: dict[bytes, int] = dict.fromkeys(keys, INT64_MAX)
        self._statements: dict[SampleId, Sample] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the node has no key of any campus."""
        return not self._retires

    @property
    def statements(self) -> tuple[Sample, ...]:
        """The statements that are kept, the oldest first."""
        return tuple(self._statements[each] for each in sorted(self._statements))

    def keys(self, *, now: int) -> tuple[bytes, ...]:
        """Return the keys whose signatures count at *now*."""
        return tuple(key for key, retires_at in self._retires.items() if now < retires_at)

    def wants(self, sample_id: SampleId) -> bool:
        """Return whether the statement with this id is unknown here and would be kept."""
        if self.is_empty or sample_id in self._statements:
            return False
        return len(self._statements) < MAX_STATEMENTS or sample_id > min(self._statements)

    def receive(self, statement: Sample) -> bool:
        """Follow a statement if a trusted key signed it; return whether it counts."""
        signer = next((key for key in self._retires if is_signed_by(statement, [key])), None)
        if signer is None or len(statement.body) != _STATEMENT.size or statement.published_at >= self._retires[signer]:
            return False
        kind, new_key, retires_at = _STATEMENT.unpack(statement.body)
        if kind != _KIND:
            return False
        self._retires[signer] = min(self._retires[signer], retires_at)
        self._retires.setdefault(new_key, INT64_MAX)
        self._statements[statement.id] = statement
        if len(self._statements) > MAX_STATEMENTS:
            del self._statements[min(self._statements)]
        return True
