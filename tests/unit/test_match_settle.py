"""A delta that stays is packed, however small it is."""

from __future__ import annotations

import pytest

from whimbrel.match.content import ContentIndex


@pytest.fixture
def index() -> ContentIndex:
    """Return an index that packs at once where it would pack beside."""
    made = ContentIndex(run=lambda pack: pack())
    for handle in range(20):
        made.add(handle, f"level > {handle}")
    return made


def test_what_stays_is_packed(index: ContentIndex) -> None:
    """Or a thousand filters would be asked one by one for as long as nobody adds another."""
    want = index.match({"level": 5})
    index.settle()
    assert not index._state.segments  # they were added since the last call, which there was none of
    index.settle()
    assert len(index._state.segments) == 1
    assert sorted(index.match({"level": 5})) == sorted(want)


def test_what_changes_is_not_packed(index: ContentIndex) -> None:
    """Packing every second what is added every second would be work without end."""
    for handle in range(20, 30):
        index.settle()
        index.add(handle, f"level > {handle}")
    assert not index._state.segments
