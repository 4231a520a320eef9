"""Semantics: the effect of each operation of a policy; the compiled form and the naive interpreter of the tests use it.

Rule: nothing here raises, whatever the values are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from whimbrel.language.ast import CompareOp, NumberFunction, PatternFunction, TestFunction, TextFunction
from whimbrel.language.operators import compare, number, text
from whimbrel.language.patterns import COMPILED, byte_searcher, program_size, searcher
from whimbrel.language.policies.operations import is_automatic
from whimbrel.language.policies.summaries import add_to_summary
from whimbrel.language.policies.tree import Scope
from whimbrel.language.policies.values import (
    NO_SCALARS,
    AnyValue,
    Compression,
    Data,
    Message,
    Projection,
    Run,
    level_of,
    storable,
    whole_pixels,
)
from whimbrel.model.attributes import Scalar, type_of
from whimbrel.model.device import MEMBER_LIMITS, has_item

__all__ = [
    "COMPARED_A_STEP",
    "MAX_COMPARED_CHARS",
    "MAX_FOLDED_CHARS",
    "MAX_ITEM_CHARS",
    "MAX_SEARCHED_CHARS",
    "PATTERN_WORK",
    "SEARCHED_A_STEP",
    "SMART_LENGTH",
    "WORK_A_STEP",
    "compare_values",
    "compress_message",
    "data_of",
    "equal",
    "is_member",
    "number_value",
    "pattern_test",
    "project_message",
    "scalar",
    "set_property",
    "size_of",
    "summarise",
    "text_value",
    "type_test",
    "with_data",
]

MAX_COMPARED_CHARS = 16_384
"""Most characters of the shorter of two compared strings; above that, the comparison is undefined."""
WORK_A_STEP = 8
"""Instructions times bytes of a regular expression that cost one step."""
SEARCHED_A_STEP = 256
"""Characters compared by ``contains`` (string times pattern, at most SMART_LENGTH per pattern) that cost one step."""
SMART_LENGTH = 128
COMPARED_A_STEP = 256
"""Compared characters of strings that cost one step."""
MAX_SEARCHED_CHARS = 4_096
"""Longest string for begins-with, ends-with and contains, in characters; on a longer one they are undefined."""
MAX_FOLDED_CHARS = 1_024
"""Longest string for fold-case and the like, in characters; one character may become eighteen."""
MAX_ITEM_CHARS = 1_024
"""Longest item of a set, in characters: no variable's name may be longer."""
PATTERN_WORK = 8_192
"""Most instructions times bytes of a regular expression or wildcard; above that, it is undefined."""


def scalar(value: AnyValue) -> Scalar | None:
    """Return *value* as an operand of an operator; messages and data become None."""
    return None if isinstance(value, NO_SCALARS) else value


def compare_values(run: Run, op: CompareOp, left: AnyValue, right: AnyValue) -> bool | None:
    """Return the verdict of ``left op right``, and count compared characters; undefined for two very long strings."""
    a, b = scalar(left), scalar(right)
    if a is None or b is None:
        return None
    if isinstance(a, str) and isinstance(b, str):
        shorter = min(len(a), len(b))
        if shorter > MAX_COMPARED_CHARS:
            return None
        run.compared += shorter
    return compare(op, a, b)


def equal(run: Run, subject: AnyValue, options: Sequence[AnyValue]) -> bool | None:
    """Return whether *subject* equals one of *options*: the verdicts of ``==``, joined by *or*."""
    result: bool | None = False
    for option in options:
        found = compare_values(run, CompareOp.EQ, subject, option)
        if found is True:
            return True
        if found is None:
            result = None
    return result


def type_test(function: TestFunction, value: AnyValue) -> bool | None:
    """Return the verdict of ``require(value)``, a type test, or ``nan(value)``."""
    if value is None:
        return None
    if function is TestFunction.REQUIRE:
        return True
    found = storable(value)
    if function is TestFunction.NAN:
        return math.isnan(found) if isinstance(found, float) else None
    return None if found is None else type_of(found).word == function


def size_of(run: Run, value: AnyValue) -> int | None:
    """Return ``size(value)``."""
    if isinstance(value, Message):
        value = value.data
    if isinstance(value, Data):
        if value.transforms:
            return None
        if value.is_original:
            return run.arrival.body_bytes
        if value.text is None or isinstance(value.text, bytes):
            return len(value.text or b"")
        return len(value.text.encode()) if len(value.text) <= MAX_SEARCHED_CHARS else None
    return len(value) if isinstance(value, str | bytes) else None


def number_value(function: NumberFunction, value: AnyValue) -> int | float | None:
    """Return ``to-int(value)`` or ``to-real(value)``."""
    return number(function, value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None


def text_value(run: Run, function: TextFunction, value: AnyValue) -> str | None:
    """Return ``fold-case(value)``, or another string function of *value*."""
    if not isinstance(value, str) or len(value) > MAX_FOLDED_CHARS:
        return None
    run.spared -= len(value)
    return text(function, value)


def pattern_test(function: PatternFunction, patterns: Sequence[str]) -> Callable[[Run, AnyValue], bool | None]:
    """Return the function that tests whether a value matches any of *patterns*, which must have been checked."""
    if function not in COMPILED:
        plain = [searcher(function, pattern) for pattern in patterns]

        length = sum(min(len(pattern), SMART_LENGTH) for pattern in patterns)
        compared = length if function is PatternFunction.CONTAINS else 0

        def verdict(run: Run, value: AnyValue) -> bool | None:
            if not isinstance(value, str) or len(value) > MAX_SEARCHED_CHARS:
                return None
            run.spared -= compared * len(value) // SEARCHED_A_STEP
            return any(search(value) for search in plain)

        return verdict
    searchers = [byte_searcher(function, pattern) for pattern in patterns]
    size = max(1, sum(program_size(function, pattern) for pattern in patterns))
    longest = PATTERN_WORK // size

    def test_value(run: Run, value: AnyValue) -> bool | None:
        if not isinstance(value, str) or len(value) > longest:
            return None
        data = value.encode()
        if len(data) > longest:
            return None
        run.spared -= size * len(data) // WORK_A_STEP
        return any(search(data) for search in searchers)

    return test_value


def is_member(run: Run, scope: Scope, name: str, item: AnyValue) -> bool | None:
    """Return whether the set *name* contains *item*, that is, whether the variable ``name.item`` exists.

    A set that was never reported is empty.
    """
    if isinstance(item, str):
        if len(item) > MAX_ITEM_CHARS:
            return None
        if scope is Scope.DEVICE and len(item) > MEMBER_LIMITS.max_name_bytes:
            return False  # longer than any name that a device may report
    elif isinstance(item, bool) or not isinstance(item, int):
        return None
    entry = f"{name}.{item}"
    reported = None if scope is Scope.STATE else run.device(entry)
    if reported is not None:
        return has_item(reported, item)
    return scope is not Scope.DEVICE and run.state(entry) is not None


def set_property(run: Run, scope: Scope, name: str, value: AnyValue) -> None:
    """Set a manual variable; ``setProperty`` has no effect on a name of an automatic variable (section 4 of the paper).

    Some names (``operations.is_automatic``) are automatic even before the device has reported them.
    """
    if scope is Scope.STATE or not (is_automatic(name) or name in run.automatic):
        run.set(name, value)


def data_of(message: AnyValue) -> Data | None:
    """Return ``getData(message)``."""
    return message.data if isinstance(message, Message) else None


def with_data(message: AnyValue, value: AnyValue) -> AnyValue:
    """Return *message* with *value* as its data: another message's data, a string or opaque bytes; NULL removes it."""
    if not isinstance(message, Message):
        return message
    if isinstance(value, Data):
        return message.with_data(value)
    if isinstance(value, str | bytes):
        return message.with_data(Data(is_original=False, text=value))
    return message.with_data(Data(is_original=False))


def compress_message(run: Run, values: Sequence[AnyValue], names: tuple[str, ...]) -> Message | None:
    """Return *message* with a transform that makes its body smaller, as ``compress(message, …)`` does."""
    message, battery, display, network = values
    if not isinstance(message, Message):
        return None
    width, height = run.device("DisplayWidth"), run.device("DisplayHeight")
    made = Compression(
        level_of(battery, network), whole_pixels(width), whole_pixels(height), whole_pixels(display), names
    )
    return message.with_transform(made)


def project_message(message: AnyValue, names: tuple[str, ...]) -> Message | None:
    """Return ``project(message, …)``."""
    return message.with_transform(Projection(names)) if isinstance(message, Message) else None


def summarise(run: Run, message: AnyValue, interval: AnyValue, names: tuple[str, ...], site: int) -> Message | None:
    """Add *message* to the summary of its subject; return the summary once the interval is over, else None."""
    if not isinstance(message, Message) or isinstance(interval, bool) or not isinstance(interval, int | float):
        return None
    if math.isnan(interval):
        return None
    return add_to_summary(run, message, interval, names, site)
