"""EBNF as the docs pages write it, and random texts that it derives."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

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


class Grammar:
    """The grammar of a docs page; *words* are spellings of its tokens."""

    def __init__(self, page: Path, words: Mapping[str, Sequence[str]]) -> None:
        found = re.search(r"```ebnf\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        assert found is not None
        self.text, self._words = found[1], words
        self._rules = Reader(found[1]).rules()
        self._heights = dict.fromkeys(self._rules, FAR)
        """How deep the shallowest derivation of each rule is."""
        for _ in self._rules:
            self._heights = {name: 1 + self._height(part) for name, part in self._rules.items()}

    def literals(self) -> set[str]:
        """Return all literal texts."""
        return {token.strip('"') for token in re.findall(r'"[^"]+"', self.text)}

    def derive(self, rule: str, seed: int) -> str:
        """Return a random text of *rule*."""
        return " ".join(self._derive(rule, random.Random(seed), 0))

    def _height(self, part: Part) -> int:
        match part:
            case Choice(options):
                return min(map(self._height, options))
            case Row(parts):
                return max(map(self._height, parts))
            case Repeat():
                return 0
            case str():
                return self._heights.get(part, 0)

    def _derive(self, part: Part, rng: random.Random, depth: int) -> list[str]:
        """Return the tokens of a random derivation; deep down, of the shallowest there is."""
        match part:
            case Choice(options) if depth > MAX_DEPTH:
                return self._derive(min(options, key=self._height), rng, depth)
            case Choice(options):
                return self._derive(rng.choice(options), rng, depth)
            case Row(parts):
                return [token for each in parts for token in self._derive(each, rng, depth)]
            case Repeat(inner):
                times = 0 if depth > MAX_DEPTH else int(rng.random() < 0.15)
                return [token for _ in range(times) for token in self._derive(inner, rng, depth)]
            case str() if part in self._rules:
                return self._derive(self._rules[part], rng, depth + 1)
            case str() if part in self._words:
                return [rng.choice(self._words[part])]
            case str():
                assert part.startswith('"'), f"{part} is neither a rule nor a token"
                return [part.strip('"')]
