"""Retained messages: the last message of each subject, found by subject filter.

Rule: subjects are stored in a tree of levels, so that a filter with wildcards visits only branches that may match.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator, Mapping
from operator import attrgetter

from whimbrel.hold.touched_rows import Key
from whimbrel.node.memory import LEVEL_BYTES, MemoryCount
from whimbrel.node.publication import KeptNotification, kept_bytes

__all__ = ["Retained", "RetainedRows"]

_PIECE = 5_000
"""Number of nodes of the tree that one step visits, about 0.5 µs per node."""
_BY_SEQ = attrgetter("seq")


class _Level:
    __slots__ = ("below", "message")

    def __init__(self) -> None:
        self.below: dict[str, _Level] = {}
        self.message: KeptNotification | None = None


class Retained:
    """The retained messages of a broker."""

    def __init__(self, memory: MemoryCount | None = None) -> None:
        self._memory = MemoryCount() if memory is None else memory
        self._root = _Level()
        self._messages: dict[str, KeptNotification] = {}
        self.sources: dict[str, str] = {}
        """Verified user whose client published the message, per subject; no entry for a client without a user."""
        self.size_bytes = 0
        """Estimated memory of the messages, in bytes."""

    def __len__(self) -> int:
        return len(self._messages)

    def __contains__(self, subject: str) -> bool:
        return subject in self._messages

    def subjects(self) -> list[str]:
        """Return the subjects that have a retained message."""
        return list(self._messages)

    def get(self, subject: str) -> KeptNotification | None:
        """Return the retained message of *subject*."""
        return self._messages.get(subject)

    def size_of(self, subject: str) -> int:
        """Return the estimated memory of the message of *subject*, in bytes; 0 if there is none."""
        message = self._messages.get(subject)
        return 0 if message is None else message.size

    def growth(self, subject: str, payload_bytes: int) -> int:
        """Return the estimated bytes by which memory would grow if a message of *subject* replaced the last one."""
        if subject in self._messages:
            return kept_bytes(len(subject) + payload_bytes) - self.size_of(subject)
        return kept_bytes(len(subject) + payload_bytes) + _path_bytes(subject)

    def put(self, message: KeptNotification, source: str | None = None) -> None:
        """Store *message*, published by a client of the user *source*, as the retained message of its subject."""
        message.keep()
        if source is None:
            self.sources.pop(message.subject, None)
        else:
            self.sources[message.subject] = source
        self._count(message.size - self.size_of(message.subject))
        if message.subject not in self._messages:
            self._memory.counted += _path_bytes(message.subject)
        self._messages[message.subject] = message
        level = self._root
        for name in message.subject.split("/"):
            found = level.below.get(name)
            if found is None:
                found = level.below[name] = _Level()
            level = found
        level.message = message

    def remove(self, subject: str) -> KeptNotification | None:
        """Remove the message of *subject*; return it, or None if there was none."""
        removed = self._messages.pop(subject, None)
        self.sources.pop(subject, None)
        if removed is not None:
            self._count(-removed.size)
            self._memory.counted -= _path_bytes(subject)
            path = [self._root]
            levels = subject.split("/")
            for name in levels:
                path.append(path[-1].below[name])
            path[-1].message = None
            for name in reversed(levels):
                level = path.pop()
                if level.message is not None or level.below:
                    break
                del path[-1].below[name]
        return removed

    def _count(self, change: int) -> None:
        self.size_bytes += change
        self._memory.counted += change

    def __iter__(self) -> Iterator[KeptNotification]:
        return iter(self._messages.values())

    def matching(self, subject_filter: str) -> list[KeptNotification]:
        """Return the messages that *subject_filter* matches, ordered by seq."""
        work = self.finding(subject_filter)
        while True:
            try:
                next(work)
            except StopIteration as done:
                return list(done.value)

    def finding(self, subject_filter: str) -> Generator[None, None, Iterator[KeptNotification]]:
        """Find messages as ``matching`` does, but in steps, yielding after each; return an iterator over the result.

        Messages that are added between two steps may be found or not.
        """
        if "+" not in subject_filter and "#" not in subject_filter:
            found = self._messages.get(subject_filter)
            return iter(() if found is None else (found,))
        sorted_pieces: list[list[KeptNotification]] = []
        messages: list[KeptNotification] = []
        for looked, message in enumerate(_walk(self._root, subject_filter.split("/")), start=1):
            if message is not None:
                messages.append(message)
            if looked % _PIECE == 0:
                messages.sort(key=_BY_SEQ)
                sorted_pieces.append(messages)
                messages = []
                yield
        messages.sort(key=_BY_SEQ)
        return heapq.merge(*sorted_pieces, messages, key=_BY_SEQ) if sorted_pieces else iter(messages)


class RetainedRows:
    """The rows of the messages *retained* by the node *node*."""

    def __init__(self, node: str, retained: Retained) -> None:
        self._node, self._retained = node, retained

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of rows: a message, and the user whose client published it."""
        return frozenset({"retained", "source"})

    def keys(self) -> Iterator[Key]:
        """Yield the keys of all rows."""
        yield from (("retained", subject) for subject in self._retained.subjects())
        yield from (("source", subject) for subject in self._retained.sources)

    def row(self, key: Key) -> bytes | None:
        """Return the row under *key*; None if there is none."""
        kind, subject = key[0], str(key[1])
        if kind == "source":
            source = self._retained.sources.get(subject)
            return None if source is None else source.encode()
        message = self._retained.get(subject)
        return None if message is None else message.record

    def restore(self, rows: Mapping[Key, bytes]) -> None:
        """Restore the messages from *rows*."""
        sources = {str(key[1]): value.decode() for key, value in rows.items() if key[0] == "source"}
        for key, value in rows.items():
            if key[0] == "retained":
                message = KeptNotification.restored(self._node, value)
                self._retained.put(message, sources.get(message.subject))


def _walk(root: _Level, levels: list[str]) -> Iterator[KeptNotification | None]:
    """Yield the messages below *root* that a filter with *levels* matches, and None for each visit without a message.

    Wildcards at the first level leave out ``$…`` (4.7.2).
    """
    pending = [(root, 0)]
    while pending:
        level, depth = pending.pop()
        if depth == len(levels):
            yield level.message
            continue
        name = levels[depth]
        yield None
        if name == "#":
            if depth:  # "a/#" admits "a"
                yield level.message
            yield from _all_below(level, is_root=not depth)
        elif name == "+":
            pending += ((below, depth + 1) for text, below in level.below.items() if depth or text[:1] != "$")
        elif name in level.below:
            pending.append((level.below[name], depth + 1))


def _all_below(level: _Level, *, is_root: bool) -> Iterator[KeptNotification | None]:
    pending = [below for text, below in level.below.items() if not is_root or text[:1] != "$"]
    while pending:
        each = pending.pop()
        yield each.message
        pending += each.below.values()


def _path_bytes(subject: str) -> int:
    """Return the estimated bytes of a subject's levels, as if no other subject shared them."""
    return LEVEL_BYTES * (subject.count("/") + 1)
