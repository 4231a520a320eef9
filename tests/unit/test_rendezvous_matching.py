"""The match of a publication and a subscription: 4.1.3, Tables 4.1 and 4.2, Figure 4-10."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel import Filter
from whimbrel.errors import InvalidValueError
from whimbrel.rendezvous.events import (
    Address,
    GroupKey,
    Publication,
    Subscription,
    address_to_bytes,
    read_address,
    read_event_id,
)
from whimbrel.rendezvous.matching import common_groups, has_common_key, is_compatible, is_consistent

ALICE, BOB = Address("00:00:00:00:00:0A"), Address("00:00:00:00:00:0B")
A, B, C = (GroupKey(bytes([number]) * 32) for number in (1, 2, 3))
NULL: tuple[GroupKey, ...] = ()

TABLE_4_1 = [
    (NULL, NULL, True),
    (NULL, (A, B), True),
    ((A, B), (B, C), True),
    ((A, B), (C,), False),
    ((A, B), NULL, False),
]


def published(*, name: str = "Bob", device_class: int = 1, keys: tuple[GroupKey, ...] = NULL) -> Publication:
    """Return what Bob publishes."""
    return Publication(address=BOB, clock_offset=5, name=name, device_class=device_class, keys=keys)


@pytest.mark.parametrize(("publication", "subscription", "verdict"), TABLE_4_1)
def test_table_4_1_of_keys(
    publication: tuple[GroupKey, ...], subscription: tuple[GroupKey, ...], *, verdict: bool
) -> None:
    """All five cases; the text above the table speaks of four."""
    assert has_common_key(published(keys=publication), Subscription(keys=subscription)) is verdict


@pytest.mark.parametrize(("publication", "subscription", "verdict"), TABLE_4_1)
def test_table_4_2_gives_the_same_verdicts_from_a_common_element(
    publication: tuple[GroupKey, ...], subscription: tuple[GroupKey, ...], *, verdict: bool
) -> None:
    """The rule as the thesis simplifies it: append NULL to the subscription's list, look for a common element."""
    left: set[GroupKey | None] = set(publication) or {None}
    right: set[GroupKey | None] = {None, *subscription}
    assert bool(left & right) is verdict


def test_doors_are_tried_in_the_publications_order() -> None:
    """The first common group is asked for first, and the publication is whose it is to say."""
    assert common_groups(published(keys=(C, A, B)), Subscription(keys=(B, A))) == (A, B)


@pytest.mark.parametrize("name", ["BOB", "Bob", "bob"])
def test_letters_match_whatever_their_case(name: str) -> None:
    """The text says so; Figure 4-10's ``equals`` would not."""
    assert is_consistent(published(name="Bob"), Subscription(name=name))


def test_an_address_matches_however_it_is_spelt() -> None:
    """Attributes ignore case, addresses included."""
    spelt = Subscription(address=Address("00-00-00-00-00-0b"))
    assert spelt.address == BOB
    assert is_consistent(published(), spelt)


@pytest.mark.parametrize(
    ("subscription", "verdict"),
    [
        (Subscription(), True),
        (Subscription(address=BOB, name="bob", device_class=1), True),
        (Subscription(address=ALICE), False),
        (Subscription(name="bobby"), False),
        (Subscription(device_class=2), False),
        (Subscription(name=""), False),
    ],
)
def test_null_is_a_wildcard_on_the_subscriptions_side(subscription: Subscription, *, verdict: bool) -> None:
    """An empty name is a value, not NULL."""
    assert is_consistent(published(), subscription) is verdict


def test_null_is_no_wildcard_on_the_publications_side() -> None:
    """A publication that leaves a value open cannot be built."""
    with pytest.raises(InvalidValueError, match="name"):
        Publication(address=BOB, clock_offset=0, name=None, device_class=0)  # type: ignore[arg-type]  # the point


def test_a_device_never_matches_itself() -> None:
    """It would be told to page itself."""
    assert is_compatible(published(), Subscription(), ALICE)
    assert not is_compatible(published(), Subscription(), BOB)


_TEXTS = st.text("abAB'", max_size=2)


@given(name=_TEXTS, device_class=st.integers(0, 2), sought=st.none() | _TEXTS, wanted=st.none() | st.integers(0, 2))
def test_a_template_means_what_the_same_filter_means(
    name: str, device_class: int, sought: str | None, wanted: int | None
) -> None:
    """One meaning of *match* in the whole house, though the controller does not use the matcher (H22)."""
    parts = [f"class == {wanted}"] if wanted is not None else []
    if sought is not None:
        quoted = sought.lower().replace("'", "\\'")
        parts.append(f"fold-case(name) == '{quoted}'")
    verdict = is_consistent(
        published(name=name, device_class=device_class), Subscription(name=sought, device_class=wanted)
    )
    text = " && ".join(parts) or "require(name)"
    assert Filter(text).matches({"name": name, "class": device_class}) is verdict


@pytest.mark.parametrize("found", ["", "00:1A", "00:1A:7D:DA:71:0G", "00:1A-7D:DA:71:0B", 7, None])
def test_what_is_no_address_is_refused(found: object) -> None:
    """The error says what an address looks like."""
    with pytest.raises(InvalidValueError, match="00:1A:7D:DA:71:0B"):
        read_address(found)


def test_an_address_has_one_spelling() -> None:
    """Caches and limits count addresses, so two spellings would be two devices."""
    spellings = ("00:1a:7d:da:71:0b", "00-1A-7D-DA-71-0B", "001a7dda710b")
    assert {read_address(each) for each in spellings} == {"00:1A:7D:DA:71:0B"}
    assert address_to_bytes(read_address(spellings[0])) == bytes.fromhex("001A7DDA710B")


@pytest.mark.parametrize("found", ["", "P", "P0", "X1", "P01", "P4294967296", "P1 ", 1])
def test_what_is_no_identifier_is_refused(found: object) -> None:
    """An identifier is a kind and a number from 1."""
    with pytest.raises(InvalidValueError, match="id"):
        read_event_id(found)


@pytest.mark.parametrize("keys", [(b"short",), (A, A), tuple(GroupKey(bytes([n]) * 32) for n in range(17)), [A]])
def test_keys_that_are_none_are_refused_without_being_shown(keys: object) -> None:
    """A private key sent by mistake must not appear in the error."""
    with pytest.raises(InvalidValueError) as caught:
        published(keys=keys)  # type: ignore[arg-type]  # the point
    assert "\\x01" not in str(caught.value)
    assert "short" not in str(caught.value)
