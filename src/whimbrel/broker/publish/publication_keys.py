"""Publication keys: remove a publication's security keys and hash them, before all other steps (Elvin proxy, 5.2.3).

Rule: a private key is hashed here and goes no further: not into the log, the attributes, or the copies for subscribers.
Rule: the name alone decides whether a property is a key (``own_properties``). An invalid key is refused and not passed
on, since it may be a mistyped private key.
Rule: if neither a publication nor its connection has keys, any subscriber may receive it, whatever ``insecure`` says.
"""

from __future__ import annotations

from whimbrel.broker.access.keyring import Keyring, for_publication, read_insecure
from whimbrel.broker.wire.own_properties import IN_PUBLISH, PREFIX, SECRET, split_own
from whimbrel.broker.wire.placing import read_placing
from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.model.keys import OPEN, Secured
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import Publish, Will
from whimbrel.mqtt.properties import Properties

__all__ = ["check_unlocked", "unlocked_by", "unlocked_will"]


def unlocked_by(packet: Publish, keyring: Keyring, *, is_ours: bool) -> tuple[Publish, Secured | str]:
    """Return a publication without its key properties, and its keys with those of the connection, or why it is refused.

    *is_ours*: the connection's CONNECT carried ``whimbrel=1``.
    """
    properties, secured = _unlock(packet.properties, keyring, is_ours=is_ours)
    return packet if properties is packet.properties else packet._replace(properties=properties), secured


def check_unlocked(packet: Publish, keyring: Keyring, *, is_ours: bool) -> None:
    """Raise ``ProtocolError`` if a request or report has an invalid key or place; a valid key or place is ignored."""
    if packet.properties.user:
        _, secured = unlocked_by(packet, keyring, is_ours=is_ours)
        if isinstance(secured, str):
            raise ProtocolError(ReasonCode.PAYLOAD_FORMAT_INVALID, secured)
        try:
            read_placing(packet.properties.user, is_ours=is_ours)
        except InvalidValueError as error:
            raise ProtocolError(ReasonCode.PAYLOAD_FORMAT_INVALID, f"user property {error}") from None


def unlocked_will(will: Will, keyring: Keyring, *, is_ours: bool) -> tuple[Will, Secured | str]:
    """Return a will without its key properties, and its keys with those of the connection, or why it is refused."""
    properties, secured = _unlock(will.properties, keyring, is_ours=is_ours)
    return will if properties is will.properties else will._replace(properties=properties), secured


def _unlock(properties: Properties, keyring: Keyring, *, is_ours: bool) -> tuple[Properties, Secured | str]:
    user = properties.user
    if not user and not keyring.publications.hashes:
        return properties, OPEN
    try:
        own, _ = split_own(user, IN_PUBLISH, is_ours=is_ours)
        insecure = [read_insecure(value) for name, value in own if name == "insecure"]
        if len(insecure) > 1:
            raise InvalidValueError("insecure", Phrase(f"{len(insecure)} values"), "one")
        keys = for_publication(value for name, value in own if name == "key") | keyring.publications
    except InvalidValueError as error:
        return properties, f"user property {error}"
    if any(name in SECRET for name, _ in own):
        taken = {PREFIX + name for name in SECRET}.union(SECRET if is_ours else ())
        properties = properties.with_user(tuple(pair for pair in user if pair[0] not in taken))
    return properties, Secured(keys, any(insecure)) if keys.hashes else OPEN
