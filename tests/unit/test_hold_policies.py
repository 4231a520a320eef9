"""What policies mean for the hold: receipts at quality 0, and shares whose notification was withheld."""

from __future__ import annotations

from whimbrel.hold.commands import Command, HandOver, Settle
from whimbrel.hold.sessions import Hold
from whimbrel.model.facts import (
    InterestChanged,
    Mode,
    Outcome,
    PolicyChange,
    PolicyChanged,
    PresenceChange,
    PresenceChanged,
)
from whimbrel.model.notification import Notification
from whimbrel.model.subscription import InterestChange, Subscription

_SHARE = "$share/nurses/ward/#"


def _choice(seq: int, device: str, name: str | None) -> PolicyChanged:
    change = PolicyChange.CHOSEN
    return PolicyChanged(node="n", seq=seq, changed_at=seq, change=change, owner=device, name=name, device=device)


def _came(seq: int, device: str) -> PresenceChanged:
    return PresenceChanged(
        node="n",
        seq=seq,
        changed_at=seq,
        device=device,
        change=PresenceChange.JOINED,
        session=f"$mqtt/{device}",
        receipt=Mode.TAKE,
        confirms=False,
    )


def _wants(seq: int, device: str, subject_filter: str, *, qos: int, policy: str | None = None) -> InterestChanged:
    session = f"$mqtt/{device}"
    subscription = Subscription(session=session, subject_filter=subject_filter, qos=qos, policy=policy)
    return InterestChanged(
        node="n", seq=seq, changed_at=seq, change=InterestChange.ADDED, subscription=subscription, device=device
    )


def _hold(subject_filter: str, *devices: str, qos: int, policy: str | None = None) -> Hold[Notification]:
    hold = Hold[Notification]("n")
    for seq, device in enumerate(devices, start=1):
        hold.apply(_came(seq, device))
        hold.apply(_wants(seq, device, subject_filter, qos=qos, policy=policy))
    return hold


def _published(hold: Hold[Notification], seq: int, subject_filter: str, *devices: str, qos: int) -> list[Command]:
    kept = Notification(node="n", seq=seq, published_at=seq, qos=qos)
    return hold.published(kept, [(f"$mqtt/{d}", ((subject_filter, ""),)) for d in devices])


def test_from_the_choice_on_quality_0_has_receipts() -> None:
    """A policy may withhold it: then it must not stand in the account as delivered."""
    hold = _hold("ward/#", "phone", qos=0)
    assert [c.is_own_receipt for c in _published(hold, 10, "ward/#", "phone", qos=0) if isinstance(c, HandOver)] == [
        True
    ]
    hold.apply(_choice(11, "phone", "icu"))
    found = _published(hold, 12, "ward/#", "phone", qos=0)
    assert [c.is_own_receipt for c in found if isinstance(c, HandOver)] == [False]
    withheld = hold.confirmed(13, "$mqtt/phone", "phone", 12, Outcome.WITHHELD)
    assert [c.outcome for c in withheld if isinstance(c, Settle)] == [Outcome.WITHHELD]
    assert not hold.is_stored(12)
    hold.apply(_choice(14, "phone", None))
    assert [c.is_own_receipt for c in _published(hold, 15, "ward/#", "phone", qos=0) if isinstance(c, HandOver)] == [
        True
    ]


def test_a_subscription_with_a_policy_has_receipts_at_quality_0() -> None:
    """The same, where the policy is that of a subscription."""
    hold = _hold("ward/#", "phone", qos=0, policy="icu")
    found = _published(hold, 10, "ward/#", "phone", qos=0)
    assert [c.is_own_receipt for c in found if isinstance(c, HandOver)] == [False]


def test_a_withheld_share_goes_to_the_next_until_one_has_it() -> None:
    """Work that is divided must be done by somebody, whatever the policy of the first who was asked says."""
    for qos in (0, 1, 2):
        hold = _hold(_SHARE, "a", "b", "c", qos=qos)
        hold.apply(_choice(8, "a", "icu"))
        assert [c.device for c in _published(hold, 10, _SHARE, "a", "b", "c", qos=qos) if isinstance(c, HandOver)] == [
            "a"
        ]
        again = hold.confirmed(11, "$mqtt/a", "a", 10, Outcome.WITHHELD)
        assert [c.device for c in again if isinstance(c, HandOver)] == ["b"]
        third = hold.confirmed(12, "$mqtt/b", "b", 10, Outcome.WITHHELD) if qos else []
        assert [c.device for c in third if isinstance(c, HandOver)] == (["c"] if qos else [])
        if qos:
            hold.confirmed(13, "$mqtt/c", "c", 10, Outcome.WITHHELD)
        assert not hold.is_stored(10)


def test_a_share_without_policies_remembers_nobody_else() -> None:
    """The names of a thousand workers beside each notification would be most of what is held."""
    hold = _hold(_SHARE, "a", "b", qos=1)
    hold.changes()
    _published(hold, 10, _SHARE, "a", "b", qos=1)
    put, _ = hold.changes()
    assert b"nurses" not in put["copy", 10]
