"""The grammars on the docs pages are the grammars of the parsers: what they derive is accepted."""

from __future__ import annotations

from pathlib import Path

from ebnf import Grammar
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.errors import PolicyError
from whimbrel.language.functions import FUNCTIONS
from whimbrel.language.parser import Parser
from whimbrel.language.policies.codes import PolicyCode
from whimbrel.language.policies.operations import OPERATIONS
from whimbrel.language.policies.reading.parser import Parser as PolicyParser
from whimbrel.language.tokens import OPERATORS

PAGES = Path(__file__).resolve().parents[2] / "docs" / "reference"
FILTERS = Grammar(
    PAGES / "language.md",
    {
        "NAME": ("a", "dose-mg", "pump.serial", "\\ö", "size", "_x:y/z"),
        "NUMBER": ("5", "052", "0x1F", "2L", "1.5e3", "true"),
        "STRING": ("'x'", '"it\'s"', "'[ab]*'", "''"),
    },
)
POLICIES = Grammar(
    PAGES / "policies.md",
    {
        "NAME": ("m", "pulse", "_x", "patientID", "size"),
        "NUMBER": ("5", "0x1F", "2L", "1.5e3", "true"),
        "STRING": ("'x'", '"two words"'),
        "OWN": ("own",),
        "SET": ("isResponsible",),
    },
)
ONLY_WITH_THE_WHOLE_POLICY = {PolicyCode.NAME, PolicyCode.TYPE, PolicyCode.NESTING, PolicyCode.READ_ONLY}


@given(seed=st.integers(0, 2**32))
def test_the_parser_accepts_what_the_grammar_derives(seed: int) -> None:
    """A reader may trust the page; whether strings meet numbers is the static check's question, not the grammar's."""
    Parser(FILTERS.derive("filter", seed)).parse()


def test_the_grammar_knows_every_function_and_operator() -> None:
    """What the page does not name, its readers do not have."""
    assert FILTERS.literals() == OPERATORS | FUNCTIONS.keys()


@given(seed=st.integers(0, 2**32))
def test_policies_are_as_their_page_says(seed: int) -> None:
    """Names, kinds and depth need the whole policy; words and their order must be right."""
    text = POLICIES.derive("policy", seed)
    if "function own" not in text:
        text += " function own ( a ) { }"
    try:
        PolicyParser(text).parse()
    except PolicyError as error:
        if error.code not in ONLY_WITH_THE_WHOLE_POLICY:
            raise


def test_the_page_of_policies_knows_every_function_and_operation() -> None:
    """What the page does not name, its readers do not have."""
    assert POLICIES.literals() >= (OPERATORS - {"&&", "||"}) | FUNCTIONS.keys() | OPERATIONS.keys()
