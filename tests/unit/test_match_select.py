"""Select: what one subscription wants of what is stored."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from whimbrel.language.filters import filter_of
from whimbrel.match.select import Selection
from whimbrel.model.keys import KeyHashes, Scheme
from whimbrel.model.near import Around
from whimbrel.model.notification import Notification
from whimbrel.model.place import Place
from whimbrel.model.proximity import Sighting
from whimbrel.model.subscription import Subscription

HERE, NEXT_DOOR, FAR = Place(52.5, 13.4), Place(52.5001, 13.4), Place(48.1, 11.6)
KEY = KeyHashes.of_private(Scheme.PRODUCER, b"of the ward")
NOW = 1_000


def _publication(**fields: object) -> Notification:
    values: dict[str, object] = {"subject": "ward/3/pulse", "attributes": {"pulse": 120}, **fields}
    return Notification(node="n1", seq=1, published_at=0, **values)  # type: ignore[arg-type]  # checked when built


def _wants(subscription: Subscription, stored: Notification, *, at: Place | None = None) -> bool:
    """Return whether a subscription of a session wants what is stored; its device is *at* a place."""
    sightings = [] if at is None else [Sighting(1, NOW, at)]
    selection = Selection(subscription, lambda: sightings)
    return selection.admits_subject(stored.subject) and selection.admits(
        lambda: stored.attributes,
        keys=stored.keys,
        deliver_insecure=stored.deliver_insecure,
        place=stored.place,
        area=stored.area,
        now=NOW,
    )


def _asks(**fields: object) -> Subscription:
    return Subscription(session="s", **fields)  # type: ignore[arg-type]  # checked when built


@pytest.mark.parametrize(
    ("wanted", "subject", "is_wanted"),
    [
        (None, "ward/3/pulse", True),
        (None, None, True),
        ("#", "ward/3/pulse", True),
        ("#", None, False),
        ("#", "$whimbrel/report", False),
        ("$whimbrel/#", "$whimbrel/report", True),
        ("ward/+/door", "ward/3/pulse", False),
    ],
)
def test_a_subject_filter_needs_a_subject(wanted: str | None, subject: str | None, is_wanted: bool) -> None:  # noqa: FBT001 # a case
    """Not even ``#`` admits what has no subject, nor what begins with ``$``; without one everything is admitted."""
    assert _wants(_asks(subject_filter=wanted), _publication(subject=subject)) is is_wanted


def test_only_a_true_verdict_selects() -> None:
    """Where the attribute is missing the verdict is undefined, whichever way it is asked."""
    door = _publication(attributes={"open": 1})
    for text, found in (("pulse > 100", [True, False]), ("!(pulse > 100)", [False, False])):
        asked = _asks(subject_filter="#", filter_text=text)
        assert [_wants(asked, stored) for stored in (_publication(), door)] == found


def test_keys_decide_too() -> None:
    """A publication for the holders of a key goes to nobody else later."""
    secret = _publication(keys=KEY, deliver_insecure=False)
    assert not _wants(_asks(subject_filter="#"), secret)
    assert _wants(_asks(subject_filter="#", keys=KEY), secret)
    assert not _wants(_asks(subject_filter="#", accept_insecure=False), _publication())


def test_places_decide_too() -> None:
    """By the last places of the session's devices, and by how long they count."""
    alarm = _publication(place=HERE, radius_m=100.0)
    everywhere, near = _asks(subject_filter="#"), _asks(subject_filter="#", near=Around(50.0))
    assert [_wants(everywhere, alarm, at=at) for at in (None, NEXT_DOOR, FAR)] == [False, True, False]
    assert [_wants(near, _publication(place=HERE), at=at) for at in (None, NEXT_DOOR, FAR)] == [False, True, False]
    assert not _wants(near, _publication(), at=HERE)
    stale = _asks(subject_filter="#", near=Around(50.0), stale_us=0)
    assert not _wants(stale, _publication(place=HERE), at=NEXT_DOOR)


def test_all_must_admit() -> None:
    """A subscription is a subject filter and a filter."""
    asked = _asks(subject_filter="ward/+/pulse", filter_text="pulse > 100")
    found = [_wants(asked, _publication(subject=subject)) for subject in ("ward/3/pulse", "ward/3/door", None)]
    assert found == [True, False, False]


def test_a_filter_is_read_once_and_only_if_it_is_asked() -> None:
    """There may be thousands of retained messages, and keys or places refuse most of them."""
    selection = Selection(_asks(subject_filter="#", filter_text="pulse > 100", keys=KEY, accept_insecure=False), list)
    with patch("whimbrel.match.select.filter_of", wraps=filter_of) as made:
        for keys in (KeyHashes(), KEY, KEY):
            selection.admits(
                lambda: _publication().attributes, keys=keys, deliver_insecure=True, place=None, area=None, now=NOW
            )
            assert made.call_count == (keys == KEY)
