"""The budget of patterns: what strangers' regular expressions may cost, in counted steps."""

from __future__ import annotations

import random

import pytest

from whimbrel.errors import FilterError
from whimbrel.language.backends.python import compile_filter
from whimbrel.language.codes import ErrorCode
from whimbrel.language.filters import Filter, parse, parse_stored
from whimbrel.language.pattern_cost import ADMITTED, MAX_CONSTANT, MAX_STEPS, STORED, longest_searched, program
from whimbrel.language.patterns import byte_searcher
from whimbrel.match.index.content import ContentIndex
from whimbrel.match.verdicts import verdicts

MEGABYTE = "".join(random.Random(1).choices("xy", k=1 << 20))
STOPPED_THE_BROKER = "regex(a, '(x|y)*x(x|y){1000}z')"
EIGHTEEN = " || ".join(f"regex(a, '(x|y)*x(x|y){{{1000 - n}}}z')" for n in range(18))
JUST_ADMITTED = "regex(a, '(x|y)*x(x|y){740}z')"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the bytes of every string that a pattern is run on from now on."""
    seen: list[int] = []

    def counted(*arguments: object) -> object:
        search = byte_searcher(*arguments)  # type: ignore[arg-type]  # as it was called

        def search_counted(data: bytes) -> bool:
            seen.append(len(data))
            return search(data)

        return search_counted

    for module in ("language.backends.python", "match.events.searching", "language.patterns"):
        monkeypatch.setattr(f"whimbrel.{module}.byte_searcher", counted)
    return seen


@pytest.mark.parametrize("text", [STOPPED_THE_BROKER, EIGHTEEN], ids=["one pattern", "eighteen patterns"])
def test_a_pattern_that_stops_a_broker_is_refused(text: str) -> None:
    """The first took 9.7 s on a publication of 1 MB, the second 33 s."""
    with pytest.raises(FilterError) as caught:
        parse(text)
    assert caught.value.code == ErrorCode.REGEX_COMPLEXITY


@pytest.mark.parametrize("text", [STOPPED_THE_BROKER, EIGHTEEN, JUST_ADMITTED])
@pytest.mark.parametrize("is_packed", [True, False], ids=["packed", "delta"])
def test_no_pattern_is_run_beyond_the_budget(text: str, runs: list[int], *, is_packed: bool) -> None:
    """Nor are those that an older version accepted: they are read again from its log."""
    index = ContentIndex.load([(1, text)]) if is_packed else ContentIndex()
    if not is_packed:
        index.add(1, text)
    tree = parse_stored(text)
    for length in (10, 50, 700, 1_500, 20_000, 1 << 20):
        runs.clear()
        assert index.match({"a": MEGABYTE[:length]}) == []
        assert len(runs) <= 18
        assert max(runs, default=0) * program(tree) <= MAX_STEPS
        assert bool(runs) is (length <= longest_searched(tree))


def test_a_string_that_is_too_long_leaves_a_pattern_undefined() -> None:
    """Neither it nor its negation is true; where it is short enough both are decided."""
    longest = longest_searched(parse("regex(a, 'x+y')"))
    short, long = {"a": "x" * longest}, {"a": "x" * (longest + 1)}
    texts = ["regex(a, 'x+y')", "!regex(a, 'x+y')", "regex(a, 'x+y') || require(a)"]
    cases = [(parse(text), event) for text in texts for event in (short, long)]
    wanted = [False, None, True, None, True, True]
    assert [compile_filter(tree)(event) for tree, event in cases] == wanted
    assert list(verdicts(cases)) == wanted


def test_bytes_are_counted_not_characters() -> None:
    """RE2 reads UTF-8."""
    asked = Filter("regex(a, 'é+y') || regex(a, 'é+z')")
    longest = longest_searched(asked.tree)
    assert asked.verdict({"a": "é" * (longest // 2)}) is False
    assert asked.verdict({"a": "é" * (longest // 2 + 1)}) is None


def test_the_patterns_of_a_filter_share_its_budget() -> None:
    """Eighteen patterns are asked about strings an eighteenth as long."""
    one = longest_searched(parse("regex(a, '[a-z]+1')"))
    many = longest_searched(parse(" || ".join(f"regex(a{n}, '[a-z]+1')" for n in range(18))))
    assert many <= one // 18 + 1


def test_a_constant_is_not_searched_for_long(runs: list[int]) -> None:
    """It is searched whenever a filter is read, so that reading would be the attack."""
    for length, verdict in ((MAX_CONSTANT, True), (MAX_CONSTANT + 1, None)):
        runs.clear()
        tree = parse(f"regex('{'x' * length}', 'x') && require(a) || b == 1")
        assert max(runs, default=0) <= MAX_CONSTANT
        cases = [(tree, {"a": 1})]
        assert list(verdicts(cases)) == [compile_filter(tree)({"a": 1})] == [verdict]


def test_what_an_older_version_accepted_is_read() -> None:
    """Its bounds were higher; a start must not stop at a filter in the log."""
    assert all(stored >= admitted for stored, admitted in zip(STORED, ADMITTED, strict=True))
    for text in (STOPPED_THE_BROKER, EIGHTEEN):
        assert compile_filter(parse_stored(text))({"a": "xxyx"}) is False


@pytest.mark.parametrize(
    "pattern",
    [r"^\\pL+, \\pL+$", "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "^[A-Z]{2}[0-9]{6}$", "(?i)error.{0,80}timeout"],
)
def test_ordinary_patterns_are_admitted(pattern: str) -> None:
    """Letters of any script, identifiers, serial numbers, lines of a log."""
    assert longest_searched(parse(f"regex(a, '{pattern}')")) >= 400
