"""The functions of the language as one data table: the parser, the help and the docs page read it."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from whimbrel.language.ast import NumberFunction, PatternFunction, TestFunction, TextFunction

__all__ = ["FUNCTIONS", "Function", "FunctionKind"]

FunctionKind: TypeAlias = TestFunction | PatternFunction | TextFunction | NumberFunction | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function: its usage, its number of arguments (``most`` None: any number), and its result."""

    name: str
    usage: str
    least: int
    most: int | None
    answers: str
    kind: FunctionKind = None


def _test(kind: TestFunction, answers: str) -> Function:
    return Function(name=kind, usage=f"{kind}(name)", least=1, most=1, answers=answers, kind=kind)


def _pattern(kind: PatternFunction, answers: str) -> Function:
    return Function(name=kind, usage=f"{kind}(S, 'pattern', …)", least=2, most=None, answers=answers, kind=kind)


def _text(kind: TextFunction, answers: str) -> Function:
    return Function(name=kind, usage=f"{kind}(S)", least=1, most=1, answers=answers, kind=kind)


def _number(kind: NumberFunction, answers: str) -> Function:
    return Function(name=kind, usage=f"{kind}(name)", least=1, most=1, answers=answers, kind=kind)


_ALL = (
    _test(TestFunction.REQUIRE, "true if the attribute is present, else undefined"),
    _test(TestFunction.INT32, "whether the attribute is an int32; undefined if missing"),
    _test(TestFunction.INT64, "whether the attribute is an int64; undefined if missing"),
    _test(TestFunction.REAL64, "whether the attribute is a real64; undefined if missing"),
    _test(TestFunction.STRING, "whether the attribute is a string; undefined if missing"),
    _test(TestFunction.OPAQUE, "whether the attribute is opaque; undefined if missing"),
    _test(TestFunction.NAN, "whether the attribute is NaN; undefined unless it is a real64"),
    Function(
        name="size",
        usage="size(name)",
        least=1,
        most=1,
        answers="the characters of a string or the bytes of an opaque, as int32; else undefined",
    ),
    _pattern(PatternFunction.BEGINS_WITH, "whether S begins with any of the patterns"),
    _pattern(PatternFunction.ENDS_WITH, "whether S ends with any of the patterns"),
    _pattern(PatternFunction.CONTAINS, "whether S contains any of the patterns"),
    _pattern(PatternFunction.WILDCARD, "whether the whole of S is like any of the patterns: * ? [a-z] [^a-z] \\c"),
    _pattern(PatternFunction.REGEX, "whether any of the RE2 patterns is found in S; dot matches newline"),
    Function(
        name="equals",
        usage="equals(S, value, …)",
        least=2,
        most=None,
        answers="the disjunction of S == value over the values",
    ),
    _text(TextFunction.FOLD_CASE, "S in Unicode lower case"),
    _text(TextFunction.DECOMPOSE, "S in Unicode normal form D"),
    _text(TextFunction.DECOMPOSE_COMPAT, "S in Unicode normal form KD"),
    _number(
        NumberFunction.TO_INT, "the integer that the attribute is, or spells as a string, such as '-7'; else undefined"
    ),
    _number(
        NumberFunction.TO_REAL,
        "the number that the attribute is, or spells as a string, such as '21.5' or '1e3', as real64; else undefined",
    ),
)

FUNCTIONS = MappingProxyType({function.name: function for function in _ALL})
