"""How text is read: precedence, literals, names, and exactly where it is wrong."""

from __future__ import annotations

import pickle

import pytest

from whimbrel.errors import FilterError
from whimbrel.language.ast import And, Binary, Compare, Literal, Name, Not, Or, Unary, Xor
from whimbrel.language.codes import ErrorCode
from whimbrel.language.filters import Filter, parse
from whimbrel.language.parser import MAX_DEPTH, MAX_HEIGHT, MAX_TEXT
from whimbrel.language.printer import print_filter
from whimbrel.model.attributes import Int64


def _error(text: str) -> FilterError:
    with pytest.raises(FilterError) as caught:
        parse(text)
    return caught.value


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a == 1 || b == 1 && c == 1", "a == 1 || (b == 1 && c == 1)"),
        ("a == 1 || b == 1 ^^ c == 1", "a == 1 || (b == 1 ^^ c == 1)"),
        ("a == 1 ^^ b == 1 && c == 1", "a == 1 ^^ (b == 1 && c == 1)"),
        ("! a == 1 && b == 1", "(!(a == 1)) && b == 1"),
        ("a + b * c == 1", "(a + (b * c)) == 1"),
        ("a * b << c == 1", "(a * (b << c)) == 1"),
        ("a << b | c == 1", "(a << (b | c)) == 1"),
        ("a | b ^ c == 1", "(a | (b ^ c)) == 1"),
        ("a ^ b & c == 1", "(a ^ (b & c)) == 1"),
        ("-a & b == 1", "((-a) & b) == 1"),
        ("a - b - c == 1", "((a - b) - c) == 1"),
        ("a / b / c == 1", "((a / b) / c) == 1"),
        ("a >>> b >> c == 1", "((a >>> b) >> c) == 1"),
        ("a==1", "a == 1"),
        ("t>5&&u<3", "t > 5 && u < 3"),
        ("a\n==\t1\r", "a == 1"),
    ],
)
def test_precedence_and_grouping(text: str, same: str) -> None:
    """Loosest first: || ^^ && ! comparison + * shift | ^ & unary; all binary operators group to the left."""
    assert parse(text) == parse(same)


def test_a_chain_of_one_operator_is_one_node() -> None:
    """A thousand ORs are wide, not deep."""
    tree = parse(" || ".join(f"a == {i}" for i in range(1_000)))
    assert isinstance(tree, Or)
    assert len(tree.operands) == 1_000


def test_parentheses_make_a_node_of_their_own() -> None:
    """Flattening is a rewrite, not a habit of the parser."""
    tree = parse("a == 1 && (b == 1 && c == 1)")
    assert isinstance(tree, And)
    assert [type(operand) for operand in tree.operands] == [Compare, And]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("052", 42),
        ("0x2A", 42),
        ("0X2a", 42),
        ("0", 0),
        ("00", 0),
        ("42L", Int64(42)),
        ("42l", Int64(42)),
        ("0x7FFFFFFF", 2**31 - 1),
        ("-2147483648", -(2**31)),
        ("- 2147483648", -(2**31)),
        ("-0x80000000", -(2**31)),
        ("9223372036854775807L", Int64(2**63 - 1)),
        ("-9223372036854775808L", Int64(-(2**63))),
        ("000000000000000000000000000000001", 1),
        ("1.5", 1.5),
        ("1.5e3", 1500.0),
        ("1.5E-3", 0.0015),
        ("1.5e+3", 1500.0),
        ("00.5", 0.5),
        ("-0.0", -0.0),
        ("true", 1),
        ("false", 0),
        ("'x'", "x"),
        ('"x"', "x"),
        (r"'it\'s'", "it's"),
        (r"'a\\b\n'", r"a\bn"),
        ("'line\nbreak'", "line\nbreak"),
        ("''", ""),
        ("'日本語'", "日本語"),
    ],
)
def test_literals(text: str, value: float | str) -> None:
    """Every spelling has one value and one type."""
    tree = parse(f"a == {text}")
    assert tree == Compare(tree.op, Name("a"), Literal(value))  # type: ignore[attr-defined]  # it is a Compare


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("user-name", "user-name"),
        ("a-5", "a-5"),
        ("_x", "_x"),
        (r"\1st", "1st"),
        (r"a\ b", "a b"),
        (r"a\=\=b", "a==b"),
        (r"\true", "true"),
        ("a.b:c/d$e#f@g", "a.b:c/d$e#f@g"),
        ("require", "require"),
        (r"\\", "\\"),
        (r"\日", "日"),
    ],
)
def test_names(text: str, name: str) -> None:
    """A backslash makes any character part of a name."""
    assert parse(f"{text} == 1") == parse("x == 1").__class__(parse("x == 1").op, Name(name), Literal(1))  # type: ignore[attr-defined,call-arg]  # it is a Compare


def test_a_minus_before_digits_is_a_literal_and_before_all_else_an_operator() -> None:
    """-2147483648 must be writable, and a - 5 must subtract."""
    assert parse("a == -5") == parse("a == (-5)")
    assert isinstance(parse("a - 5 == 0").left, Binary)  # type: ignore[attr-defined]  # it is a Compare
    assert isinstance(parse("a == -(5)").right, Unary)  # type: ignore[attr-defined]  # it is a Compare
    assert isinstance(parse("a == --5").right, Unary)  # type: ignore[attr-defined]  # it is a Compare


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("", ErrorCode.PARSE, ""),
        ("   ", ErrorCode.PARSE, ""),
        ("a ==", ErrorCode.PARSE, ""),
        ("a == 1 b", ErrorCode.PARSE, "b"),
        ("(a == 1", ErrorCode.PARSE, "("),
        ("a < b < c", ErrorCode.PARSE, "<"),
        ("a == ! b == 1", ErrorCode.PARSE, "!"),
        ("require(a,)", ErrorCode.PARSE, ")"),
        ("a = 1", ErrorCode.TOKEN, "="),
        ("a == 1e5", ErrorCode.TOKEN, "1e5"),
        ("a == 5x", ErrorCode.TOKEN, "5x"),
        ("a == .5", ErrorCode.TOKEN, "."),
        ("a == 1.0.0", ErrorCode.TOKEN, "1.0.0"),
        ("é == 1", ErrorCode.TOKEN, "é"),
        ("a == 1 \v", ErrorCode.TOKEN, "\v"),
        ("a == 1 && b == 'x", ErrorCode.UNTERMINATED, "'x"),
        ("begins(a, 'x')", ErrorCode.FUNCTION, "begins"),
        ("a == 2147483648", ErrorCode.OVERFLOW, "2147483648"),
        ("a == 0xFFFFFFFF", ErrorCode.OVERFLOW, "0xFFFFFFFF"),
        ("a - 2147483648 == 1", ErrorCode.OVERFLOW, "2147483648"),
        ("a == -2147483649", ErrorCode.OVERFLOW, "-2147483649"),
        ("a == 9223372036854775808L", ErrorCode.OVERFLOW, "9223372036854775808L"),
        ("a == 1.0e400", ErrorCode.OVERFLOW, "1.0e400"),
        ("a", ErrorCode.TYPE, "a"),
        ("a == 1 && 'x'", ErrorCode.TYPE, "'x'"),
        ("5 > 'x'", ErrorCode.TYPE, "5 > 'x'"),
        ("a == 1 && size(b) == 'x'", ErrorCode.TYPE, "size(b) == 'x'"),
        ("a + 'x' == 1", ErrorCode.TYPE, "'x'"),
        ("(a + 1.0) << 2 == 1", ErrorCode.TYPE, "a + 1.0"),
        ("equals(fold-case(a), 'x', 5)", ErrorCode.TYPE, "5"),
        ("a == true && true", ErrorCode.TYPE, "true"),
        ("require(5)", ErrorCode.TYPE, "5"),
        ("regex(a)", ErrorCode.TOO_FEW, "regex(a)"),
        ("equals(a)", ErrorCode.TOO_FEW, "equals(a)"),
        ("size(a, b) == 1", ErrorCode.TOO_MANY, "b"),
        ("regex(a, '(')", ErrorCode.REGEX, "regex(a, '(')"),
        ("wildcard(a, '[x')", ErrorCode.REGEX, "wildcard(a, '[x')"),
        ("wildcard(a, '[z-a]')", ErrorCode.REGEX, "wildcard(a, '[z-a]')"),
        ("5 > 3", ErrorCode.TRIVIAL, "5 > 3"),
        ("a == 1 || 2 > 1", ErrorCode.TRIVIAL, "a == 1 || 2 > 1"),
        ("1 / 0 == 1", ErrorCode.TRIVIAL, "1 / 0 == 1"),
        ("a == 1 || 1.0e300 * 1.0e300 > 0.0", ErrorCode.TRIVIAL, "a == 1 || 1.0e300 * 1.0e300 > 0.0"),
        ("equals('a', 'a', b)", ErrorCode.TRIVIAL, "equals('a', 'a', b)"),
        ("regex(a, '" + "x{900}" * 6 + "')", ErrorCode.REGEX_COMPLEXITY, None),
        ("regex(a, '" + "x" * 5_000 + "')", ErrorCode.REGEX_COMPLEXITY, None),
        (" || ".join(["regex(a, 'x')"] * 200), ErrorCode.REGEX_COMPLEXITY, None),
        ("(" * 1_000 + "a == 1" + ")" * 1_000, ErrorCode.NESTING, "("),
        ("!" * 1_000 + "a == 1", ErrorCode.NESTING, "!"),
        ("a" + " + a" * 1_000 + " == 1", ErrorCode.NESTING, "+"),
        ("fold-case(" * 1_000 + "a" + ")" * 1_000 + " == 'x'", ErrorCode.NESTING, None),
        ("a == '" + "x" * MAX_TEXT + "'", ErrorCode.LENGTH, ""),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else None,
)
def test_an_error_has_its_code_and_its_place(text: str, code: ErrorCode, place: str | None) -> None:
    """Whoever wrote the filter must see at once what to mend, and where."""
    error = _error(text)
    assert error.code == code
    assert place is None or text[error.start : error.end] == place


def test_line_and_column_are_counted_from_one() -> None:
    """Editors count so."""
    error = _error("a == 1 &&\n  b = 2")
    assert (error.line, error.column) == (2, 5)
    assert error.pointed().endswith("\n    b = 2\n      ^")


def test_the_caret_stands_under_its_place_in_a_very_long_line() -> None:
    """A generated filter is one line of kilobytes; the message stays readable."""
    error = _error("a == 1 && " * 500 + "b = 2" + " && a == 1" * 500)
    *_, line, carets = error.pointed().splitlines()
    assert len(line) < 120
    assert line[carets.index("^")] == "="


def test_wide_characters_do_not_shift_the_caret() -> None:
    """日 takes two columns of a terminal."""
    *_, line, carets = _error("a == '日本' = 1").pointed().splitlines()
    assert len(carets) - 1 == len(line[: line.rindex("=")]) + 2


def test_an_error_survives_pickling() -> None:
    """Errors cross process borders in Spark."""
    error = _error("a = 1")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301  # our own bytes


def test_deep_but_allowed_nesting_works_everywhere() -> None:
    """The bound is where we put it, not where Python's stack ends."""
    inside = MAX_DEPTH - 2
    assert parse("(" * inside + "a == 1" + ")" * inside) == parse("a == 1")
    tall = Filter("!" * (MAX_HEIGHT - 2) + "a == 1")
    assert tall.matches({"a": 1})
    assert tall.normal() == "a == 1"


def test_the_tallest_tree_prints_to_a_text_that_parses() -> None:
    """Alternating junctions need a parenthesis at every level."""
    text = "a == 1"
    for level in range(MAX_HEIGHT - 2):
        text = f"b == 2 {'&&' if level % 2 else '||'} ({text})"
    assert parse(print_filter(parse(text))) == parse(text)
    assert _error(f"c == 3 ^^ ({text})").code == ErrorCode.NESTING


def test_constants_fold_away() -> None:
    """A == 5 && 10 > 9 is a == 5."""
    assert Filter("a == 5 && 10 > 9").normal() == "a == 5"
    assert Filter("a == 2 + 3 * 4").normal() == "a == 14"
    assert Filter("a == 1 ^^ 2 > 1").normal() == "a != 1"
    assert Filter("a == fold-case('ABC')").normal() == "a == 'abc'"
    assert Filter("equals(a, 1, 2) || b == 1 / 0").normal() == "a == 1 || a == 2 || b == 1 / 0"


def test_logical_operators_keep_their_kind() -> None:
    """The three junctions and the negation."""
    assert [type(parse(f"a == 1 {op} b == 1")) for op in ("&&", "||", "^^")] == [And, Or, Xor]
    assert isinstance(parse("!require(a)"), Not)


def test_a_filter_takes_plain_python_values() -> None:
    """Users pass what json.loads gave them."""
    assert Filter("a == 1 && b == 5000000000L && c == true").matches({"a": 1, "b": 5_000_000_000, "c": True})
    assert repr(Filter("a == 1")) == "Filter('a == 1')"
