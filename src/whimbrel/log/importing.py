"""Importing: append JSON lines from another system to a node's log.

Rule: the log assigns the seqs in the order of the lines. A line may state a node and seq only if they equal the
assigned ones. Times must not run backwards.
Rule: a bad line ends the import, and the facts before it are durable; or it becomes a dead letter and the import
continues. No line is dropped silently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from whimbrel.errors import InvalidInputError, InvalidValueError, MalformedBodyError, MalformedLineError
from whimbrel.log import layout
from whimbrel.log.lines import row_from_json
from whimbrel.log.writer import LogWriter
from whimbrel.model.attributes import Limits
from whimbrel.model.clock import Clock
from whimbrel.model.facts import Fact
from whimbrel.model.json_body import read_json
from whimbrel.model.rows import fact_of

__all__ = ["DeadLetters", "Imported", "import_lines"]

_GROUP = 1_000
_LINE_LIMITS = Limits(max_bytes=512 << 20)
_CONTENT_BYTES = 65_536
_OF_RECEIPTS = {"receipts", "decisions"}
"""Tables whose facts show that the devices of a log confirm hand-overs."""


@dataclass(slots=True)
class Imported:
    """Counts of an import, up to now."""

    lines: int = 0
    dead_letters: int = 0
    facts: Counter[str] = field(default_factory=Counter)
    """Facts per table."""
    first_seq: int | None = None
    last_seq: int | None = None


class DeadLetters:
    """Buffer of bad lines for the table ``dead_letters``, whose Parquet files are named by times instead of seqs."""

    def __init__(self, directory: Path, node: str, clock: Clock) -> None:
        self._directory, self._node, self._clock = directory, node, clock
        self._rows: list[tuple[int, dict[str, object]]] = []
        self._last_at = 0

    def add(self, source: str, line: int, reason: str, content: bytes) -> None:
        """Buffer a bad line: its *source*, its number *line*, the *reason*, and its *content*."""
        self._last_at = max(self._last_at + 1, self._clock.now())  # unique: it is in the part's name
        row = {"found_at": self._last_at, "source": source, "position": line, "reason": reason}
        self._rows.append((self._last_at, row | {"content": content[:_CONTENT_BYTES]}))

    def flush(self) -> None:
        """Write the buffered lines to the table ``dead_letters``, one Parquet file per day."""
        from whimbrel.log.parts import PartWriter, publish  # loads Arrow, so only if there are dead letters

        for day, of_day in groupby(self._rows, key=lambda each: layout.date_of(each[0])):
            rows = list(of_day)
            first, last = rows[0][0], rows[-1][0]
            path = layout.part_path(
                self._directory, layout.DEAD_LETTERS, day=day, node=self._node, first=first, last=last
            )
            writer = PartWriter(path, layout.DEAD_LETTERS)
            try:
                for _, row in rows:
                    writer.add(row)
                writer.finish()
                publish([writer])
            finally:
                writer.abandon()
        self._rows.clear()


def import_lines(
    log: LogWriter,
    lines: Iterable[bytes],
    *,
    source: str,
    done: Imported,
    letters: DeadLetters | None = None,
) -> None:
    """Append the facts of *lines* to *log* and count them in *done*; errors name the input *source*."""
    is_confirmed = False
    try:
        for number, line in enumerate(lines, start=1):
            done.lines = number
            if not line.strip():
                continue
            try:
                table, fact = _fact(log, line)
                log.append(fact)
            except InvalidInputError as error:
                if letters is None:
                    raise MalformedLineError(source, number, _column(error, line), _reason(error)) from None
                letters.add(source, number, _reason(error), line.rstrip(b"\r\n"))
                done.dead_letters += 1
                if done.dead_letters % _GROUP == 0:
                    letters.flush()
                continue
            done.facts[table] += 1
            if table in _OF_RECEIPTS and not is_confirmed:
                layout.expect_receipts(log.directory)
                is_confirmed = True
            if log.pending >= _GROUP:
                _sync(log, done)
    finally:
        # Also when a bad line or a full disk ends the import: the facts before it are kept, and counted.
        _sync(log, done)
        if letters is not None:
            letters.flush()


def _sync(log: LogWriter, done: Imported) -> None:
    before = log.durable_seq
    last = log.sync()
    if last > before:
        done.first_seq = before + 1 if done.first_seq is None else done.first_seq
        done.last_seq = last


def _fact(log: LogWriter, line: bytes) -> tuple[str, Fact]:
    table, row = row_from_json(read_json(line.rstrip(b"\r\n"), limits=_LINE_LIMITS))
    for column, given in (("node", log.node), ("seq", log.next_seq)):
        if row.setdefault(column, given) != given:
            raise InvalidValueError(column, row[column], f"{given}, which the log gives, or none")
    return table, fact_of(table, row)


def _reason(error: InvalidInputError) -> str:
    return error.reason if isinstance(error, MalformedBodyError) else str(error)


def _column(error: InvalidInputError, line: bytes) -> int:
    """Return where in the text *line* the error is, counted from 1: at bad JSON, or at the name of a bad column.

    It is 1 if the position is unknown.
    """
    if isinstance(error, MalformedBodyError):
        return error.column or 1
    if isinstance(error, InvalidValueError):
        text = line.decode(errors="replace")
        return max(text.find(f'"{error.what}"'), 0) + 1
    return 1
