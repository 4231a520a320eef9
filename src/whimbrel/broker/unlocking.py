"""Unlocking: the keys of a publication, taken off it before anything else is done with it (Elvin proxy, 5.2.3).

Rule: a private key is hashed here and goes no further: not into the log, not into the attributes, not to subscribers.
Rule: the user property ``key`` of plain MQTT is left alone; ours is one that names a scheme, or says ``private``. What
looks like a private key and is none is refused, and not passed on.
"""

from __future__ import annotations

from whimbrel.broker.keyring import Keyring, for_publication, read_insecure
from whimbrel.broker.routes import OPEN, Secured
from whimbrel.errors import InvalidValueError
from whimbrel.model.keys import Scheme
from whimbrel.mqtt.packets import Publish, Will
from whimbrel.mqtt.properties import Properties

__all__ = ["unlocked_by", "unlocked_will"]

_BEGINNINGS = tuple(f"{scheme.value}:" for scheme in Scheme)


def unlocked_by(packet: Publish, keyring: Keyring) -> tuple[Publish, Secured | None]:
    """Return a publication without its keys, and its keys with those of the connection; None if they are none."""
    properties, secured = _unlocked(packet.properties, keyring)
    return packet if properties is packet.properties else packet._replace(properties=properties), secured


def unlocked_will(will: Will, keyring: Keyring) -> tuple[Will, Secured | None]:
    """Return the same of a will."""
    properties, secured = _unlocked(will.properties, keyring)
    return will if properties is will.properties else will._replace(properties=properties), secured


def _unlocked(properties: Properties, keyring: Keyring) -> tuple[Properties, Secured | None]:
    user = properties.user
    texts = [value for name, value in user if name == "key" and _is_ours(value)]
    if not texts and not keyring.publications.hashes:
        return properties, OPEN
    insecure = [value for name, value in user if name == "insecure"]
    kept = tuple((name, value) for name, value in user if name != "insecure" and (name != "key" or value not in texts))
    bare = properties if kept == user else properties.with_user(kept)
    try:
        keys = for_publication(texts) | keyring.publications
        return bare, Secured(keys, any(map(read_insecure, insecure)))
    except InvalidValueError:
        return bare, None


def _is_ours(value: str) -> bool:
    return value.startswith(_BEGINNINGS) or ":private:" in value
