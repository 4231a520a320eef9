"""The vocabulary: what is not agreed on is refused where it is made."""

from __future__ import annotations

import pytest

from whimbrel.errors import FilterError, InvalidValueError
from whimbrel.model.attributes import Int64
from whimbrel.nearby.vocabulary import EventType, FilterTooCostlyError, UnknownTypeError, Vocabulary

WORDS = Vocabulary.of({"traffic light": {"status": "string", "lane": "int32"}, "sign": {"limit": "real64"}})
LIGHT = WORDS["traffic light"]


def test_an_event_has_the_parameters_of_its_type() -> None:
    """A consumer's filter must find what the vocabulary promises."""
    assert LIGHT.check({"status": "red", "lane": 2}) == {"status": "red", "lane": 2}
    for values in ({"status": "red"}, {"status": "red", "lane": 2, "colour": 1}, {"status": 1, "lane": 2}):
        with pytest.raises(InvalidValueError):
            LIGHT.check(values)


def test_integers_widen_to_what_was_declared() -> None:
    """Whether a limit is written 50 or 50.0 is no difference that an application should know."""
    assert repr(WORDS["sign"].check({"limit": 50})["limit"]) == "50.0"
    long = Vocabulary.of({"count": {"n": "int64"}})["count"]
    assert type(long.check({"n": 1})["n"]) is Int64


def test_a_filter_speaks_of_its_type_and_of_the_consumer() -> None:
    """A filter that could never be true is a mistake to be told at once."""
    assert LIGHT.check_filter("status == 'red' && approaching == 1 && distance_m < 100").tree
    for text in ("colour == 1", "status > 5", "contains(lane, 'x')"):
        with pytest.raises(InvalidValueError):
            LIGHT.check_filter(text)
    with pytest.raises(FilterError):
        LIGHT.check_filter("status = 'red'")


def test_a_filter_above_the_bound_of_its_type_is_refused() -> None:
    """The time of matching can only be predicted if every filter has a bound (4.3)."""
    cheap = EventType(name="t", parameters=LIGHT.parameters, max_filter_steps=6)
    assert cheap.check_filter("lane == 1")
    with pytest.raises(FilterTooCostlyError, match="allow 6"):
        cheap.check_filter("lane == 1 || lane == 2 || lane > 5 && lane < 9")
    with pytest.raises(FilterTooCostlyError):
        LIGHT.check_filter("regex(status, '(r|g)+e*d?.{1,40}')")


def test_the_bound_of_a_filter_is_part_of_what_is_agreed_on() -> None:
    """A producer promises by it how long its consumers take to match (4.3): both must know the same one."""
    tree = {"light": {"parameters": {"status": "string"}, "max_filter_steps": 500}, "sign": {"limit": "real64"}}
    words = Vocabulary.of(tree)
    assert words["light"].max_filter_steps == 500
    assert list(words["light"].parameters) == ["status"]
    longer = EventType(name="light", parameters=words["light"].parameters, max_filter_steps=501)
    assert words.contradicts("light", longer.fingerprint)
    with pytest.raises(FilterTooCostlyError, match="allow 500"):
        words["light"].check_filter("contains(status, 'red')")
    for wrong in ({"max_filter_steps": 0}, {"max_filter_steps": "500"}, {"steps": 500}):
        with pytest.raises(InvalidValueError):
            Vocabulary.of({"light": {"parameters": {"status": "string"}, **wrong}})


def test_what_a_filter_does_to_a_text_is_counted_byte_by_byte() -> None:
    """2,000 comparisons of a decomposed text were 8,001 steps, and took 142 ms."""
    for function in ("decompose-compat", "decompose", "fold-case"):
        text = " || ".join([f"{function}(status) == 'x'"] * 100)
        with pytest.raises(FilterTooCostlyError):
            LIGHT.check_filter(text)
        assert LIGHT.check_filter(f"{function}(status) == 'x'")
    with pytest.raises(InvalidValueError, match="1024 bytes"):
        LIGHT.check({"status": "\u00e9" * 513, "lane": 2})


def test_contradicting_vocabularies_are_noticed() -> None:
    """Two fleets that mean different things by one name must not talk past each other."""
    other = Vocabulary.of({"traffic light": {"status": "int32"}})
    assert WORDS.contradicts("traffic light", other["traffic light"].fingerprint)
    assert not WORDS.contradicts("traffic light", LIGHT.fingerprint)
    assert not other.contradicts("sign", WORDS["sign"].fingerprint)
    with pytest.raises(UnknownTypeError, match=r"it has traffic light$"):
        other["sign"]
    with pytest.raises(InvalidValueError):
        Vocabulary([LIGHT, EventType(name="traffic light", parameters={})])


@pytest.mark.parametrize("tree", [{"light": 3}, {"light": {"status": "colour"}}, {"": {}}, {"x" * 200: {}}])
def test_a_vocabulary_that_is_none_is_refused(tree: dict[str, object]) -> None:
    """It comes from a file."""
    with pytest.raises(InvalidValueError):
        Vocabulary.of(tree)
