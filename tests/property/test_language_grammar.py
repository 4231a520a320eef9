"""The grammar on the docs page is the grammar of the parser: what it derives is accepted."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from whimbrel.language.functions import FUNCTIONS
from whimbrel.language.parser import Parser
from whimbrel.language.tokens import OPERATORS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "language.md"
WORDS: Mapping[str, Sequence[str]] = {
    "NAME": ("a", "dose-mg", "pump.serial", "\\ö", "size", "_x:y/z"),
    "NUMBER": ("5", "052", "0x1F", "2L", "1.5e3", "true"),
    "STRING": ("'x'", '"it\'s"', "'[ab]*'", "''"),
}
FAR = 1_000
MAX_DEPTH = 18


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several."""

    options: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One after the other."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Any number of times."""

    part: Part


Part: TypeAlias = Choice | Row | Repeat | str
"""A string is a rule's name, a token's name, or literal text in its quotes."""


class Reader:
    """Reads EBNF as the docs page writes it."""

    def __init__(self, text: str) -> None:
        self.tokens = re.findall(r'"[^"]*"|[A-Za-z-]+|[=;|(){}]', text)

    def rules(self) -> dict[str, Part]:
        """Return every rule by its name."""
        rules: dict[str, Part] = {}
        while self.tokens:
            name, equals = self.tokens.pop(0), self.tokens.pop(0)
            assert equals == "=", f"{name} is followed by {equals}"
            rules[name] = self._choice(";")
        return rules

    def _choice(self, end: str) -> Part:
        options: list[Part] = []
        parts: list[Part] = []
        while (token := self.tokens.pop(0)) != end:
            match token:
                case "|":
                    options.append(Row(tuple(parts)))
                    parts = []
                case "(":
                    parts.append(self._choice(")"))
                case "{":
                    parts.append(Repeat(self._choice("}")))
                case _:
                    parts.append(token)
        return Choice((*options, Row(tuple(parts))))


def _grammar() -> str:
    found = re.search(r"```ebnf\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


RULES = Reader(_grammar()).rules()


@cache
def _heights() -> dict[str, int]:
    """Return how deep the shallowest derivation of each rule is."""
    heights = dict.fromkeys(RULES, FAR)
    for _ in RULES:
        heights = {name: 1 + _height(part, heights) for name, part in RULES.items()}
    return heights


def _height(part: Part, heights: Mapping[str, int]) -> int:
    match part:
        case Choice(options):
            return min(_height(option, heights) for option in options)
        case Row(parts):
            return max(_height(each, heights) for each in parts)
        case Repeat():
            return 0
        case str():
            return heights.get(part, 0)


def _derive(part: Part, rng: random.Random, depth: int) -> list[str]:
    """Return the tokens of a random derivation; deep down, of the shallowest there is."""
    match part:
        case Choice(options) if depth > MAX_DEPTH:
            return _derive(min(options, key=lambda option: _height(option, _heights())), rng, depth)
        case Choice(options):
            return _derive(rng.choice(options), rng, depth)
        case Row(parts):
            return [token for each in parts for token in _derive(each, rng, depth)]
        case Repeat(inner):
            times = 0 if depth > MAX_DEPTH else int(rng.random() < 0.15)
            return [token for _ in range(times) for token in _derive(inner, rng, depth)]
        case str() if part in RULES:
            return _derive(RULES[part], rng, depth + 1)
        case str() if part in WORDS:
            return [rng.choice(WORDS[part])]
        case str():
            assert part.startswith('"'), f"{part} is neither a rule nor a token"
            return [part.strip('"')]


@given(seed=st.integers(0, 2**32))
def test_the_parser_accepts_what_the_grammar_derives(seed: int) -> None:
    """A reader may trust the page; whether strings meet numbers is the static check's question, not the grammar's."""
    Parser(" ".join(_derive("filter", random.Random(seed), 0))).parse()


def test_the_grammar_knows_every_function_and_operator() -> None:
    """What the page does not name, its readers do not have."""
    assert {token.strip('"') for token in re.findall(r'"[^"]+"', _grammar())} == OPERATORS | FUNCTIONS.keys()
