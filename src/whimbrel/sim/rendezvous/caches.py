"""Savings by two caches of the controller: bytes that a device sends with each cache and without it (5.4.1).

The cache of removed events: a device leaves radio range and returns, so its events were flushed. It renews them by
their identifiers, or must send them again. The cache of verified members: a friend asks repeatedly for a restricted
publication, and either shows its token each time, or only answers a challenge.
"""

from __future__ import annotations

import time

from whimbrel.model.clock import US_PER_S
from whimbrel.rendezvous.controller import NoteKind, Parameters
from whimbrel.rendezvous.device import Device
from whimbrel.rendezvous.events import Address, GroupKey, Subscription
from whimbrel.rendezvous.tokens import DeviceKeys, GroupOwner
from whimbrel.sim.hall import Hall
from whimbrel.sim.rendezvous.discovery import add_device, address

__all__ = ["play_caches"]

_OFF_US = 1
"""Time to live of a disabled cache, in microseconds."""
_SEEKER, _SOUGHT = address(2), address(3)
_FAR = (100.0, 0.0)
_LOST_S = 22
"""Longer than the supervision timeout of 20 s, shorter than the cache's time to live."""
_BACK_S = 35
_ASKS_S = 30
_YEAR_US = 365 * 86_400 * US_PER_S


def play_caches(
    *, has_removed: bool, has_members: bool, seed: int, losses: int = 3, asks: int = 4
) -> dict[str, object]:
    """Simulate both cases; return the bytes and packets that each device sent."""
    begun = time.process_time()
    settings = {"has_removed": has_removed, "has_members": has_members, "seed": seed, "losses": losses, "asks": asks}
    lost = _lose(losses, has_removed=has_removed, seed=seed)
    asked = _ask(asks, has_members=has_members, seed=seed)
    return {"kind": "caches", **settings, **lost, **asked, "core_s": time.process_time() - begun}


def _member(who: Address, name: str, owner: GroupOwner) -> Device:
    keys = DeviceKeys(who.encode().ljust(32, b"."))
    token = owner.admit(keys.token(who), device_key=keys.public, peer=who, expires_at=_YEAR_US)
    return Device(address=who, name=name, keys=keys, tokens={owner.public: token})


def _lose(losses: int, *, has_removed: bool, seed: int) -> dict[str, object]:
    """Move a device with a publication and two subscriptions out of range and back, *losses* times."""
    hall = Hall(seed, Parameters(removed_ttl_us=33_280_000 if has_removed else _OFF_US))
    owner = GroupOwner(b"o" * 32)
    device = _member(_SOUGHT, "a device with a name of some length", owner)
    node = add_device(hall, device)
    node.do(device.publish(keys=(owner.public,), is_lasting=True))
    for name in ("nobody in particular", "somebody else"):
        node.do(device.subscribe(Subscription(name=name, keys=(owner.public,)), is_lasting=True))
    hall.air.run(_BACK_S * US_PER_S)
    radio = hall.air.reserve(_SOUGHT)
    before = radio.current_usage().figures()
    for _ in range(losses):
        radio.move(_FAR)
        hall.air.run(_LOST_S * US_PER_S)
        radio.move((0.0, 0.0))
        hall.air.run(_BACK_S * US_PER_S)
    after = radio.current_usage().figures()
    return {
        "lost_bytes": (after["sent_bytes"] - before["sent_bytes"]) / losses,
        "lost_packets": (after["sent_packets"] - before["sent_packets"]) / losses,
        "renewed": sum(note.kind is NoteKind.RENEWED for note, _ in hall.notes),
    }


def _ask(asks: int, *, has_members: bool, seed: int) -> dict[str, object]:
    """Submit a friend's subscription for a restricted publication *asks* times."""
    hall = Hall(seed, Parameters(member_ttl_us=600 * US_PER_S if has_members else _OFF_US, pair_ttl_us=_OFF_US))
    owner = GroupOwner(b"o" * 32)
    keys: tuple[GroupKey, ...] = (owner.public,)
    sought, seeker = _member(_SOUGHT, "sought", owner), _member(_SEEKER, "seeker", owner)
    add_device(hall, sought).do(sought.publish(keys=keys, is_lasting=True))
    node = add_device(hall, seeker, has_short_talks=True)
    hall.air.run(_ASKS_S * US_PER_S)
    node.do(seeker.subscribe(Subscription(name="nobody"), is_lasting=True))  # keeps it with the controller
    hall.air.run(_ASKS_S * US_PER_S)
    radio = hall.air.reserve(_SEEKER)
    before = radio.current_usage().figures()
    for _ in range(asks):
        node.do(seeker.subscribe(Subscription(name="sought", keys=keys)))
        hall.air.run(_ASKS_S * US_PER_S)
    after = radio.current_usage().figures()
    return {
        "asked_bytes": (after["sent_bytes"] - before["sent_bytes"]) / asks,
        "asked_packets": (after["sent_packets"] - before["sent_packets"]) / asks,
        "met": len(hall.list_introductions(_SEEKER)),
    }
