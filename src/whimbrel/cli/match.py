"""``whimbrel match``: finds which of many subscriptions want each of many events."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from whimbrel.cli.options.lines import json_lines, name_of
from whimbrel.cli.process.resident import resident_mb
from whimbrel.errors import FilterError, InvalidInputError, InvalidValueError, MalformedLineError
from whimbrel.model.attributes import Attributes
from whimbrel.model.codecs import from_tree

if TYPE_CHECKING:  # numba takes a second to load, which every other command would wait for
    from whimbrel.match.matcher import Interest, Matcher

__all__ = ["match"]

_PASSES = 3
_SMALL_BYTES = 64 << 10


def match(
    *,
    subscriptions: Annotated[
        Path,
        typer.Option("--subscriptions", "-s", metavar="S.jsonl", help='Lines of {"id", "filter"[, "subject"]}.'),
    ],
    events: Annotated[
        Path,
        typer.Option("--events", "-e", metavar="E.jsonl", help='Lines of {"attributes"[, "subject"]}.'),
    ],
    count: Annotated[bool, typer.Option("--count", help="Print how many match, and how fast, not who.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object, or one line per event.")] = False,
) -> None:
    """Print which of many subscriptions want each of many events.

    Prints the line number of each event that a subscription matches, and the ids of these subscriptions. A subscription
    without a filter wants everything that its subject (an MQTT topic filter) admits; an event without a subject is
    wanted only by subscriptions without one.

    Example: whimbrel match --subscriptions subscriptions.jsonl --events events.jsonl
    """
    is_small = not count and _is_small(subscriptions)
    if not is_small:
        _prepare()
    begun = time.perf_counter()
    matcher = _load(subscriptions, is_small=is_small)
    build_s = time.perf_counter() - begun
    numbers, subjects, attributes = _events(events)
    if not count:
        _print_matches(matcher, numbers, subjects, attributes, as_json=as_json)
        return
    matches, us_per_event = _measure(matcher, subjects, attributes)
    result = {
        "subscriptions": len(matcher),
        "events": len(numbers),
        "matches": matches,
        "build_s": round(build_s, 3),
        "us_per_event": round(us_per_event, 3),
        "resident_mb": round(resident_mb(), 1),
    }
    if as_json:
        typer.echo(json.dumps(result))
    else:
        typer.echo(
            f"{result['subscriptions']} subscriptions, {result['events']} events, {matches} matches; "
            f"loaded in {build_s:.1f} s, {us_per_event:.2f} µs per event, {result['resident_mb']} MB resident"
        )


def _prepare() -> None:
    """Load the compiled code of the matcher (kernels); its first use on a machine compiles it, in some seconds."""
    from whimbrel.match.first_use import compile_all  # see above

    with Console(stderr=True).status("Preparing the matcher (compiled once, on its first use) …"):
        compile_all()


class _Subscriptions:
    """The subscriptions of a file, read one by one; ``line`` is the last line that was read, for error messages."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.line = 0

    def __iter__(self) -> Iterator[tuple[str, Interest]]:
        for line, fields in json_lines(self._path, doing="Loading subscriptions"):
            self.line = line
            yield _interest(fields)


def _is_small(path: Path) -> bool:
    """Return whether there are so few subscriptions that loading the compiled matcher is not worth it."""
    return str(path) != "-" and path.is_file() and path.stat().st_size <= _SMALL_BYTES


def _load(path: Path, *, is_small: bool) -> Matcher:
    from whimbrel.match.matcher import Matcher  # see above

    found = _Subscriptions(path)
    try:
        if not is_small:
            return Matcher.load(found)
        return _add_all(found)
    except MalformedLineError:
        raise
    except FilterError as error:
        raise MalformedLineError(name_of(path), found.line, error.column, f"in its filter, {error.pointed()}") from None
    except InvalidInputError as error:
        raise MalformedLineError(name_of(path), found.line, 1, str(error)) from None


def _add_all(interests: Iterable[tuple[str, Interest]]) -> Matcher:
    """Return a matcher of a few subscriptions, without compiled code; an id that occurs twice is refused."""
    from whimbrel.match.matcher import Matcher  # see above

    matcher = Matcher()
    for identity, interest in interests:
        before = len(matcher)
        matcher.add(identity, interest)
        if len(matcher) == before:
            raise InvalidValueError("subscription id", identity, "one that was not used before")
    return matcher


def _interest(fields: dict[str, object]) -> tuple[str, Interest]:
    identity, text, subject = fields.get("id"), fields.get("filter"), fields.get("subject")
    if not isinstance(identity, str):
        raise InvalidValueError("id", identity, "a string")
    if text is not None and not isinstance(text, str):
        raise InvalidValueError("filter", text, "a string, or none for everything")
    if subject is not None and not isinstance(subject, str):
        raise InvalidValueError("subject", subject, "a topic filter, or none for any")
    from whimbrel.match.matcher import Interest  # see above

    return identity, Interest(filter_text=text, subject_filter=subject)


def _events(path: Path) -> tuple[list[int], list[str | None], list[Attributes]]:
    numbers: list[int] = []
    subjects: list[str | None] = []
    attributes: list[Attributes] = []
    for number, fields in json_lines(path, doing="Reading events"):
        subject, tree = fields.get("subject"), fields.get("attributes", {})
        try:
            if subject is not None and not isinstance(subject, str):
                raise InvalidValueError("subject", subject, "a string, or none")
            if not isinstance(tree, dict):
                raise InvalidValueError("attributes", tree, "an object")
            attributes.append(from_tree(tree))
        except InvalidInputError as error:
            raise MalformedLineError(name_of(path), number, 1, str(error)) from None
        numbers.append(number)
        subjects.append(subject)
    return numbers, subjects, attributes


def _print_matches(
    matcher: Matcher, numbers: list[int], subjects: list[str | None], attributes: list[Attributes], *, as_json: bool
) -> None:
    rows, handles = matcher.match_batch(subjects, attributes)
    pairs = zip(rows.tolist(), handles.tolist(), strict=True)
    for row, group in groupby(pairs, key=lambda pair: pair[0]):
        ids = sorted(matcher.id_of(handle) for _, handle in group)
        if as_json:
            typer.echo(json.dumps({"event": numbers[row], "ids": ids}, ensure_ascii=False))
        else:
            typer.echo(f"{numbers[row]}: {' '.join(ids)}")


def _measure(matcher: Matcher, subjects: list[str | None], attributes: list[Attributes]) -> tuple[int, float]:
    """Return the number of matches, and the time per event in microseconds: the median of a few measurements."""
    import pyarrow as pa  # needed only for this measurement

    from whimbrel.model.tables import ATTRIBUTES_TYPE, attributes_to_column_value

    column = pa.array([attributes_to_column_value(each) for each in attributes], ATTRIBUTES_TYPE)
    given = subjects if any(subject is not None for subject in subjects) else None
    matches = len(matcher.match_batch(given, column)[0])  # the first call also loads the compiled kernel
    passes = []
    for _ in range(_PASSES):
        begun = time.perf_counter()
        matcher.match_batch(given, column)
        passes.append(time.perf_counter() - begun)
    return matches, statistics.median(passes) / max(1, len(attributes)) * 1e6
