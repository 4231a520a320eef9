"""Contact traces in the format of the ONE: ``time CONN a b up`` and ``time CONN a b down``, one event per line.

Many traces are of directed sightings (a saw b, and b saw a): a pair is in contact while either lasts. A trace of links
has one direction only, and may swap the two nodes in the line that ends the link. Both kinds can be read. An optional
sixth word names a radio interface, as in the ONE: the pair is in contact while any of its interfaces is up.

Rule: lines are read in the order of the file, and their times never decrease; a contact of zero length is kept.
Rule: a second ``up`` of the same direction changes nothing; a contact still up at the end lasts until the last time.
Rule: an invalid line ends the reading with an error that names file, line and reason; node names are texts.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from whimbrel.errors import MalformedLineError
from whimbrel.sim.contacts.table import Contacts

__all__ = ["MAX_NODES", "Trace", "read_trace", "trace_lines", "trace_of"]

MAX_NODES = 20_000
_MAX_LINE = 1_000
_MAX_LINES = 50_000_000
_MAX_SECONDS = 1e12
_VERBS = ("up", "down")
_COMPRESSED = (b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zX", b"\x28\xb5\x2f\xfd")
"""First bytes of files that gzip, zip, bzip2, xz and zstd wrote."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Contacts whose nodes are numbered in the order of their names, and these names."""

    contacts: Contacts
    names: tuple[str, ...]
    first_s: float
    """Time of the first line; the contacts count from there."""


def read_trace(path: Path) -> Trace:
    """Return the trace in the file at *path*."""
    with path.open("rb") as file:
        if file.peek(4).startswith(_COMPRESSED):
            raise MalformedLineError(str(path), 1, 1, "the file is compressed; unpack it first")
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace")
        return trace_of(_read_bounded_lines(text, str(path)), source=str(path))


def trace_of(lines: Iterable[str], *, source: str) -> Trace:
    """Parse a trace; *source* names it in errors."""
    reader = _Reader(source)
    for number, line in enumerate(lines, start=1):
        reader.take(line, number)
    return reader.finish()


def trace_lines(contacts: Contacts) -> Iterator[str]:
    """Yield *contacts* as lines of a trace, ordered by time; at equal times, starts come before ends."""
    events = [(start, 0, low, high) for start, _, low, high in contacts.rows()]
    events += [(end, 1, low, high) for _, end, low, high in contacts.rows()]
    for time, verb, low, high in sorted(events):
        yield f"{time!r} CONN {low} {high} {_VERBS[verb]}\n"


def _read_bounded_lines(text: io.TextIOWrapper, source: str) -> Iterator[str]:
    """Yield the lines of *text*; read at most a little more of a line than is allowed."""
    for number, line in enumerate(iter(lambda: text.readline(_MAX_LINE + 2), ""), start=1):
        if len(line.rstrip("\n")) > _MAX_LINE:
            raise MalformedLineError(source, number, _MAX_LINE + 1, f"longer than the {_MAX_LINE} characters allowed")
        if "\0" in line:
            raise MalformedLineError(source, number, 1, "found a byte 0; allowed is text in UTF-8")
        if number > _MAX_LINES:
            raise MalformedLineError(source, number, 1, f"more than the {_MAX_LINES} lines allowed")
        yield line


class _Reader:
    """Builds the contacts of each pair, line by line."""

    def __init__(self, source: str) -> None:
        self._source, self._number = source, 0
        self._first_s: float | None = None
        self._now = -math.inf
        self._names: set[str] = set()
        self._up: dict[tuple[str, str], set[tuple[str, str]]] = {}
        """Sightings that last now, per pair: (the node that sees the other, interface)."""
        self._since: dict[tuple[str, str], float] = {}
        self._found: dict[tuple[str, str], list[tuple[float, float]]] = {}

    def take(self, line: str, number: int) -> None:
        """Parse one line; ignore blank lines and those that start with #."""
        self._number = number
        words = line.split()
        if not words or words[0].startswith("#"):
            return
        if not 5 <= len(words) <= 6:
            raise self._wrong(f"found {len(words)} words, allowed are: time CONN node node up|down [interface]")
        time, verb, one, other, change = words[:5]
        self._advance(time)
        if verb.upper() != "CONN":
            raise self._wrong(f"found the verb {verb!r}, allowed is CONN")
        if change.lower() not in _VERBS:
            raise self._wrong(f"found {change!r}, allowed is up or down")
        if one == other:
            raise self._wrong(f"found node {one} in contact with itself")
        self._names |= {one, other}
        if len(self._names) > MAX_NODES:
            raise self._wrong(f"more than the {MAX_NODES} nodes allowed")
        pair = (one, other) if one < other else (other, one)
        interface = words[5] if len(words) > 5 else ""
        if change.lower() == "up":
            self._up.setdefault(pair, set()).add((one, interface))
            self._since.setdefault(pair, self._now)
        else:
            self._end(pair, (one, interface), (other, interface))

    def finish(self) -> Trace:
        """Close the open contacts and return the trace."""
        if self._first_s is None:
            self._number = 1
            raise self._wrong("there is no contact in this trace")
        for pair, since in self._since.items():
            self._keep(pair, since)
        names = tuple(sorted(self._names, key=_name_order))
        place = {name: number for number, name in enumerate(names)}
        rows = []
        for pair, spans in self._found.items():
            low, high = sorted(place[name] for name in pair)
            rows += [(start - self._first_s, end - self._first_s, low, high) for start, end in spans]
        contacts = Contacts.of(rows, nodes=len(names), seconds=self._now - self._first_s)
        return Trace(contacts, names, self._first_s)

    def _advance(self, text: str) -> None:
        try:
            time = float(text) if text.isascii() and "_" not in text else math.nan
        except ValueError:
            time = math.nan
        if not 0 <= time <= _MAX_SECONDS:
            raise self._wrong(f"found the time {text!r}, allowed is a number of seconds from 0 to {_MAX_SECONDS:g}")
        if time < self._now:
            raise self._wrong(f"found the time {text} after {self._now:g}; times must not run backwards")
        self._now = time
        if self._first_s is None:
            self._first_s = time

    def _end(self, pair: tuple[str, str], seer: tuple[str, str], seen: tuple[str, str]) -> None:
        seers = self._up.get(pair, set())
        if seer not in seers and seen not in seers:
            raise self._wrong(f"found {seer[0]} {seen[0]} down, which was not up")
        seers.discard(seer if seer in seers else seen)
        if not seers:
            self._keep(pair, self._since.pop(pair))

    def _keep(self, pair: tuple[str, str], since: float) -> None:
        spans = self._found.setdefault(pair, [])
        if spans and since <= spans[-1][1]:  # it ended and started within one instant
            spans[-1] = (spans[-1][0], self._now)
        else:
            spans.append((since, self._now))

    def _wrong(self, reason: str) -> MalformedLineError:
        return MalformedLineError(self._source, self._number, 1, reason)


def _name_order(name: str) -> tuple[int, int, str]:
    return (0, int(name), name) if name.isascii() and name.isdigit() else (1, 0, name)
