"""Any text is an access or our error, and an access comes back from its text."""

from __future__ import annotations

import json
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from whimbrel.broker.access.passwords import Access, Cost, PasswordHash, Passwords, read_access
from whimbrel.errors import InvalidValueError
from whimbrel.hold.access import AccessControlList, Grant, Right

_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
_HASHES = st.builds(
    PasswordHash,
    salt=st.binary(min_size=16, max_size=64),
    digest=st.binary(min_size=32, max_size=32),
    cost=st.builds(Cost, n=st.sampled_from([2, 1024, 2**14]), r=st.integers(1, 8), p=st.integers(1, 4)),
)
_GRANTS = st.builds(Grant, who=_NAMES, rights=st.frozensets(st.sampled_from(Right)), is_group=st.booleans())
ACCESSES: st.SearchStrategy[Access] = st.one_of(
    st.builds(Passwords, owner=_HASHES),
    st.builds(Passwords, user=_HASHES, admin=_HASHES, owner=st.none() | _HASHES),
    st.builds(
        AccessControlList,
        owner=_NAMES,
        grants=st.lists(_GRANTS, max_size=4, unique_by=lambda grant: (grant.who, grant.is_group)).map(tuple),
    ),
)
_WORDS = st.sampled_from(
    ["passwords", "list", "user", "admin", "owner", "users", "groups", "n", "r", "p", "salt", "hash", "join", "00" * 32]
)
_TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _WORDS | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=5),
    max_leaves=12,
)


def _is_access_or_refused(text: str) -> None:
    with suppress(InvalidValueError):
        found = read_access(text)
        assert read_access(found.to_text()) == found


@given(access=ACCESSES)
def test_an_access_comes_back_from_its_text(access: Access) -> None:
    """The log and the view know it by its text only."""
    assert read_access(access.to_text()) == access


@given(text=st.text(max_size=40) | _TREES.map(json.dumps))
def test_any_text_is_an_access_or_our_error(text: str) -> None:
    """A log may come from anywhere."""
    _is_access_or_refused(text)


@given(access=ACCESSES, place=st.floats(0, 1, exclude_max=True), instead=st.text(max_size=2))
def test_any_damage_to_a_text_gives_an_access_or_our_error(access: Access, place: float, instead: str) -> None:
    """One character replaced by others, anywhere."""
    text = access.to_text()
    at = int(place * len(text))
    _is_access_or_refused(text[:at] + instead + text[at + 1 :])


@given(access=ACCESSES, place=st.sampled_from(["n", "r", "p", "salt", "hash"]), tree=_TREES)
def test_any_member_of_a_hash_may_be_anything(access: Access, place: str, tree: object) -> None:
    """Numbers of any size, strings, arrays and objects where they do not belong."""
    found = json.loads(access.to_text())
    for level in found.get("passwords", {}).values():
        level[place] = tree
    _is_access_or_refused(json.dumps(found))
