"""Parse the subscriptions that a SUBSCRIBE asks for (docs/reference/mqtt.md).

Version 5 gives content filters and options as user properties (``own_properties``), one set per packet. Version 3.1.1
gives a content filter as ``$filter/<base64url of its text>/<topic filter>``, and before that a place as
``$near/<near>/<topic filter>``.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass

from whimbrel.broker.access.keyring import for_subscription, read_insecure
from whimbrel.broker.wire.own_properties import IN_SUBSCRIBE, split_own
from whimbrel.errors import FilterError, InvalidValueError, WhimbrelError
from whimbrel.language.filters import Filter
from whimbrel.model.bounds import INT32_MAX
from whimbrel.model.clock import US_PER_S
from whimbrel.model.keys import NO_KEYS, KeyHashes
from whimbrel.model.near import DEFAULT_STALE_US, Near, parse_near, parse_stale_us
from whimbrel.model.subscription import Subscription
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import SubscriptionRequest
from whimbrel.mqtt.topics import check_topic_filter, disallowed_in, split_share

__all__ = [
    "NO_OPTIONS",
    "Limits",
    "Options",
    "Since",
    "identity_of",
    "near_of",
    "options_of",
    "read_filter",
    "stale_of",
    "subscription_of",
]

_IN_TOPIC = "$filter/"
_NEAR_TOPIC = "$near/"
_MAX_TTL_S = 10 * 365 * 24 * 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits and defaults of subscriptions."""

    filter_bytes: int = 16_384
    topic_bytes: int = 4_096
    topic_levels: int = 64
    maximum_qos: int = 2
    ttl_us: int = 604_800_000_000
    max_held: int = 100_000
    max_held_by_default: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """Where a subscription begins in the log: *seconds* ago, or after *seq* of *node*."""

    seconds: int | None = None
    node: str = ""
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The broker's options among the user properties of a SUBSCRIBE or UNSUBSCRIBE."""

    filter: Filter | None = None
    """The content filter, parsed here once for the whole packet."""
    ttl_us: int | None = None
    max_held: int | None = None
    name: str = ""
    session: str | None = None
    """Name of the session that the packet applies to; None: the default, "": the private session."""
    keys: KeyHashes = NO_KEYS
    is_insecure: bool | None = None
    """Whether to accept notifications without matching keys; None: the default."""
    policy: str | None = None
    """The policy that decides about deliveries for the subscription."""
    near: Near | None = None
    """The area that a publication's place must be in; None: places make no difference."""
    stale_us: int | None = None
    """Longest age in microseconds of a reported place that counts; None: the default."""
    modifies: bool = False
    """Whether the SUBSCRIBE may change a named session's subscription that has other options."""
    since: Since | None = None
    """Position in the log from which old notifications are sent; None: only new notifications."""


NO_OPTIONS = Options()
_SINCE = re.compile(r"([0-9]{1,10})([smhd]?)|([^\x00-\x20]{1,64}):([0-9]{1,19})")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


def since_of(text: str) -> Since:
    """Parse ``since``: ``90``, ``15m``, ``24h``, ``7d``, or ``node:seq``, the last seq that the client has."""
    found = _SINCE.fullmatch(text)
    if found is None:
        allowed = "a duration (90, 90s, 15m, 24h, 7d), or node:seq, the last number that the client has"
        raise _refusal(f"user property since={text[:80]!r}, allowed is {allowed}")
    if found[1] is not None:
        return Since(seconds=int(found[1]) * _UNITS[found[2]])
    return Since(node=found[3], seq=int(found[4]))


def options_of(user: Sequence[tuple[str, str]], limits: Limits, *, is_ours: bool) -> Options:
    """Parse the user properties; raise ``ProtocolError`` for a bad one, with its value and the allowed values.

    *is_ours*: the connection's CONNECT carried ``whimbrel=1``.
    """
    if not user:
        return NO_OPTIONS
    found: dict[str, str] = {}
    try:
        own, _ = split_own(user, IN_SUBSCRIBE, is_ours=is_ours)
        keys = for_subscription(value for name, value in own if name == "key")
        is_insecure = next((read_insecure(value) for name, value in own if name == "insecure"), None)
    except InvalidValueError as error:
        raise _refusal(f"user property {error}") from None
    for name, value in own:
        if name != "key":
            if name in found:
                raise _refusal(f"user property {name} twice; one set of options a packet")
            found[name] = value
    return Options(
        filter=None if "filter" not in found else read_filter(found["filter"], limits),
        ttl_us=None if "ttl" not in found else _number("ttl", found["ttl"], _MAX_TTL_S) * US_PER_S,
        max_held=None if "max" not in found else _number("max", found["max"], INT32_MAX),
        name=found.get("name", ""),
        session=found.get("session"),
        keys=keys,
        is_insecure=is_insecure,
        policy=found.get("policy"),
        near=None if "near" not in found else near_of(found["near"]),
        stale_us=None if "stale" not in found else stale_of(found["stale"]),
        modifies=_is_yes("modify", found.get("modify", "no")),
        since=None if "since" not in found else since_of(found["since"]),
    )


def near_of(text: str) -> Near:
    """Parse *text* as the value of ``near`` (a circle, polygon or distance), or raise ``ProtocolError``."""
    try:
        return parse_near(text)
    except InvalidValueError as error:
        raise _refusal(str(error)) from None


def stale_of(text: str) -> int:
    """Parse the longest age of a reported place, and return it in microseconds; or raise ``ProtocolError``."""
    try:
        return parse_stale_us(text)
    except InvalidValueError as error:
        raise _refusal(str(error)) from None


def subscription_of(
    request: SubscriptionRequest,
    options: Options,
    session: str,
    identifier: int | None,
    limits: Limits,
    connection_keys: KeyHashes = NO_KEYS,
) -> Subscription:
    """Return the subscription that *request* asks for, or raise ``ProtocolError`` with the code for the answer.

    The keys of the connection are merged into the subscription, which keeps them (Elvin proxy, 5.2.3).
    """
    topic_filter, name, content, near = _parts(request.topic_filter, options, limits)
    _, plain = split_share(topic_filter)
    check_topic_filter(plain)
    disallowed = disallowed_in(topic_filter)
    if disallowed is not None:
        raise _refusal(f"a topic filter with {disallowed}; control and non-characters are refused")
    if len(topic_filter.encode()) > limits.topic_bytes or plain.count("/") >= limits.topic_levels:
        allowed = f"at most {limits.topic_bytes} bytes and {limits.topic_levels} levels"
        raise ProtocolError(
            ReasonCode.TOPIC_FILTER_INVALID, f"a topic filter of {len(topic_filter)} characters, {allowed}"
        )
    try:
        keys = options.keys | connection_keys if connection_keys.hashes else options.keys
        return Subscription(
            session=session,
            subject_filter=topic_filter,
            name=name,
            filter_text=None if content is None else content.text,
            ttl_us=limits.ttl_us if options.ttl_us is None else options.ttl_us,
            max_held=min(limits.max_held_by_default if options.max_held is None else options.max_held, limits.max_held),
            keys=keys,
            accept_insecure=not keys.hashes if options.is_insecure is None else options.is_insecure,
            qos=min(request.qos, limits.maximum_qos),
            no_local=request.no_local,
            retain_as_published=request.retain_as_published,
            identifier=identifier,
            policy=options.policy,
            near=near,
            stale_us=DEFAULT_STALE_US if options.stale_us is None and near is not None else options.stale_us,
            parsed=content,
        )
    except WhimbrelError as error:
        raise _refusal(str(error)) from error


def identity_of(topic_filter: str, options: Options, limits: Limits) -> tuple[str, str]:
    """Return the identity (topic filter and name) of the subscription that an UNSUBSCRIBE names."""
    plain, name, *_ = _parts(topic_filter, options, limits)
    check_topic_filter(split_share(plain)[1])
    return plain, name


def _parts(topic_filter: str, options: Options, limits: Limits) -> tuple[str, str, Filter | None, Near | None]:
    """Return the topic filter, the subscription's name, its content filter and its ``near``.

    Without a name in the properties, the texts ``$near/…`` and ``$filter/…`` in front of the topic filter (as clients
    of 3.1.1 send them) are the name.
    """
    if topic_filter.startswith(_NEAR_TOPIC):
        where, _, topic_filter = topic_filter.removeprefix(_NEAR_TOPIC).partition("/")
        if topic_filter.startswith(_NEAR_TOPIC):
            raise _refusal(f"{_NEAR_TOPIC} twice in a topic filter")
        plain, name, content, _ = _parts(topic_filter, options, limits)
        own = f"{_NEAR_TOPIC}{where}"
        return plain, options.name or (f"{own}/{name}" if name else own), content, near_of(where)
    if not topic_filter.startswith(_IN_TOPIC):
        return topic_filter, options.name, options.filter, options.near
    encoded, _, plain = topic_filter.removeprefix(_IN_TOPIC).partition("/")
    try:
        text = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise _refusal("$filter/ is followed by base64url of a filter's text, a slash and a topic filter") from None
    return plain, options.name or _IN_TOPIC + encoded, read_filter(text, limits), options.near


def read_filter(text: str, limits: Limits) -> Filter:
    """Parse *text* as a content filter, or raise ``ProtocolError``."""
    if len(text.encode()) > limits.filter_bytes:
        raise _refusal(f"a filter of {len(text.encode())} bytes, at most {limits.filter_bytes} are allowed")
    try:
        return Filter(text)
    except FilterError as error:
        raise _refusal(
            f"filter error {error.code:d} at line {error.line}, column {error.column}: {error.reason}"
        ) from error


def _number(name: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= most):
        raise _refusal(f"user property {name}={text[:40]!r}, allowed is a whole number from 0 to {most}")
    return int(text)


def _is_yes(name: str, text: str) -> bool:
    if text not in {"yes", "no"}:
        raise _refusal(f"user property {name}={text[:40]!r}, allowed is yes or no")
    return text == "yes"


def _refusal(reason: str) -> ProtocolError:
    return ProtocolError(ReasonCode.TOPIC_FILTER_INVALID, reason)
