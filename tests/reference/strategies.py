"""Hypothesis strategies for filters, attributes and facts (needs hypothesis, which Whimbrel itself does not).

The trees pass the static check; the attributes miss some names, mistype others and love edges, because that is where
three-valued logic, promotion and wrap-around show.
"""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from whimbrel.language.ast import (
    And,
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Convert,
    Equals,
    Literal,
    Name,
    Not,
    NumberFunction,
    Or,
    Pattern,
    PatternFunction,
    Predicate,
    Size,
    Test,
    TestFunction,
    Text,
    TextFunction,
    Unary,
    UnaryOp,
    Value,
    Xor,
)
from whimbrel.language.check import INTEGER_OPS, StaticError, check
from whimbrel.model.attributes import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, Attributes, Int64, Scalar
from whimbrel.model.bounds import FIRST_TIME, LAST_TIME
from whimbrel.model.device import DeviceState, Display
from whimbrel.model.facts import (
    Decided,
    Fact,
    InterestChanged,
    Mode,
    Outcome,
    PolicyChange,
    PolicyChanged,
    PresenceChange,
    PresenceChanged,
    Receipt,
    Reported,
    SessionChange,
    SessionChanged,
    WillChange,
    WillChanged,
)
from whimbrel.model.keys import KeyHash, KeyHashes, Scheme
from whimbrel.model.near import ANYWHERE, Around, Near
from whimbrel.model.notification import MAX_PACKET_ID, MAX_QOS, Notification, NotificationId
from whimbrel.model.place import Area, Place
from whimbrel.model.polygon import Polygon
from whimbrel.model.subscription import MAX_IDENTIFIER, InterestChange, Subscription, SubscriptionIdentity
from whimbrel.model.will import LastWill

__all__ = ["attributes", "facts", "filters", "names", "polygons", "scalars", "trees"]

NAMES = ("a", "b", "c", "d", "user-name", "two words", "true", "1st", "ünïcode")

_SMALL = st.integers(-4, 4)
_INT32 = st.one_of(_SMALL, st.sampled_from([INT32_MIN, INT32_MAX, 31, 32, 33, 64]), st.integers(INT32_MIN, INT32_MAX))
_INT64 = st.one_of(
    _SMALL, st.sampled_from([INT64_MIN, INT64_MAX, 2**53 + 1, INT32_MAX + 1]), st.integers(INT64_MIN, INT64_MAX)
).map(Int64)
_REAL = st.one_of(_SMALL.map(float), st.sampled_from([-0.0, 0.5, 2.0**53, 1e300]), st.floats())
_FINITE = _REAL.filter(lambda real: abs(real) <= 1.7e308)
_STRING = st.one_of(
    st.sampled_from(["", "a", "ab", "abc", "ABC", "foobar", "Á", "Á", "ß", "x\ny", "*", "[a]", "it's", '"\\'])
    | st.sampled_from(["7", "-7", "+1.5", "1e3", ".5", "1.", " 7", "7\n", "1_0", "٣", "9223372036854775808", "1e999"])
    # the rest of Unicode, lone surrogates aside
    | st.text(st.characters(codec="utf-8"), max_size=6)
)
REGEXES = ("a", "^a", "b$", "a.c", "o+b", "[a-c]+", "(?i)abc", "^$", "x.y", "a|b")
WILDCARDS = ("*", "?", "a*", "*b*", "a?c", "[a-c]*", "[^a]*", "\\*", "*bar", "x?y", "[]]")


def names() -> st.SearchStrategy[str]:
    """Return a few attribute names, some of which the language must escape."""
    return st.sampled_from(NAMES)


def scalars() -> st.SearchStrategy[Scalar]:
    """Return values of all five types, edges first."""
    return st.one_of(_INT32, _INT64, _REAL, _STRING, st.binary(max_size=3))


def attributes() -> st.SearchStrategy[Attributes]:
    """Return attributes for the names that ``trees`` speak of, some missing, some of an unexpected type."""
    return st.dictionaries(names(), scalars(), max_size=len(NAMES))


def filters() -> st.SearchStrategy[Predicate]:
    """Return trees that pass the static check."""
    return trees().filter(_passes)


def trees() -> st.SearchStrategy[Predicate]:
    """Return well-formed trees of any kind; a few are constant or too deep, and fail the static check."""
    return st.recursive(_leaves(), _compound, max_leaves=8)


def _passes(tree: Predicate) -> bool:
    try:
        check(tree)
    except StaticError:
        return False
    return True


def _compound(inner: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Predicate]:
    several = st.lists(inner, min_size=2, max_size=4).map(tuple)
    return st.one_of(st.builds(And, several), st.builds(Or, several), st.builds(Xor, several), st.builds(Not, inner))


def _leaves() -> st.SearchStrategy[Predicate]:
    numbers, strings, name = _numbers(), _strings(), st.builds(Name, names())
    comparison = st.sampled_from(CompareOp)
    plain = [PatternFunction.BEGINS_WITH, PatternFunction.ENDS_WITH, PatternFunction.CONTAINS]
    return st.one_of(
        st.builds(Compare, comparison, name, st.one_of(_literals(), name)),
        st.builds(Compare, comparison, numbers, numbers),
        st.builds(Compare, comparison, strings, strings),
        st.builds(Equals, name, st.lists(st.one_of(_literals(), name, numbers), min_size=1, max_size=3).map(tuple)),
        st.builds(Equals, strings, st.lists(strings, min_size=1, max_size=3).map(tuple)),
        st.builds(Pattern, st.sampled_from(plain), strings, _patterns(_STRING)),
        st.builds(Pattern, st.just(PatternFunction.REGEX), strings, _patterns(st.sampled_from(REGEXES))),
        st.builds(Pattern, st.just(PatternFunction.WILDCARD), strings, _patterns(st.sampled_from(WILDCARDS))),
        st.builds(Test, st.sampled_from(TestFunction), name),
    )


def _patterns(each: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(each, min_size=1, max_size=3).map(tuple)


def _literals() -> st.SearchStrategy[Literal]:
    return st.builds(Literal, st.one_of(_INT32, _INT64, _FINITE, _STRING))


def _numbers() -> st.SearchStrategy[Value]:
    """Numeric terms in which integers stay apart from reals where the static check wants them to."""
    name = st.builds(Name, names())
    integers = st.recursive(
        st.one_of(
            name,
            st.builds(Literal, st.one_of(_INT32, _INT64)),
            st.builds(Size, name),
            st.builds(Convert, st.just(NumberFunction.TO_INT), name),
        ),
        lambda inner: st.one_of(
            st.builds(Unary, st.sampled_from(UnaryOp), inner),
            st.builds(Binary, st.sampled_from(BinaryOp), inner, inner),
        ),
        max_leaves=4,
    )
    signs = st.sampled_from([UnaryOp.NEGATE, UnaryOp.PLUS])
    arithmetic = st.sampled_from([op for op in BinaryOp if op not in INTEGER_OPS])
    return st.recursive(
        st.one_of(integers, st.builds(Literal, _FINITE), st.builds(Convert, st.just(NumberFunction.TO_REAL), name)),
        lambda inner: st.one_of(st.builds(Unary, signs, inner), st.builds(Binary, arithmetic, inner, inner)),
        max_leaves=3,
    )


def _strings() -> st.SearchStrategy[Value]:
    return st.recursive(
        st.one_of(st.builds(Name, names()), st.builds(Literal, _STRING)),
        lambda inner: st.builds(Text, st.sampled_from(TextFunction), inner),
        max_leaves=2,
    )


# -- facts -----------------------------------------------------------------------------------------------------------

_TIMES = st.one_of(st.sampled_from([INT64_MIN, -1, 0, INT64_MAX]), st.integers(INT64_MIN, INT64_MAX))
_DATES = st.one_of(st.sampled_from([FIRST_TIME, -1, 0, LAST_TIME]), st.integers(FIRST_TIME, LAST_TIME))
_NODES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)
_WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
_SUBJECTS = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=8)
_SEQS = st.one_of(st.integers(0, 99), st.integers(0, INT64_MAX))
_PLACES = st.builds(Place, st.floats(-90, 90), st.floats(-180, 180))
_AREAS = st.builds(Area, _PLACES, st.floats(0, 20_000_000))


def polygons(centres: st.SearchStrategy[Place] | None = None) -> st.SearchStrategy[Polygon]:
    """Return polygons that see all of themselves from one place, of 3 to 9 corners, across the antimeridian too."""
    away = st.lists(st.floats(0.001, 4), min_size=3, max_size=9)
    return st.builds(_star, _PLACES if centres is None else centres, away)


def _star(centre: Place, away: list[float]) -> Polygon:
    corners = []
    middle = min(max(centre.latitude, -85.0), 85.0)
    for number, degrees in enumerate(away):
        angle = 2 * math.pi * number / len(away)
        longitude = centre.longitude + degrees * math.cos(angle)
        longitude -= 360 * ((longitude > 180) - (longitude < -180))
        corners.append(Place(middle + degrees * math.sin(angle), longitude))
    return Polygon(tuple(corners))


_NEARS: st.SearchStrategy[Near | None] = st.one_of(
    st.none(), _AREAS, polygons(), st.builds(Around, st.floats(0, 20_000_000)), st.just(ANYWHERE)
)
_DISPLAYS = st.builds(Display, st.integers(0, INT32_MAX), st.integers(0, INT32_MAX))
_DIGESTS = st.binary(min_size=20, max_size=20) | st.binary(min_size=32, max_size=32)
_KEYS = st.frozensets(st.builds(KeyHash, st.sampled_from(Scheme), _DIGESTS), max_size=3).map(KeyHashes)
_FRACTIONS = st.none() | st.floats(0, 1)
_PACKET_IDS = st.integers(1, MAX_PACKET_ID)
_COUNTS = st.none() | st.integers(0, INT64_MAX)
_ATTRIBUTES = st.dictionaries(names(), scalars().filter(lambda value: value == value), max_size=4)  # noqa: PLR0124 # NaN


def facts(*, node: str | None = None) -> st.SearchStrategy[Fact]:
    """Return facts of every table, edges first; of one *node* or of any. None holds a NaN, so equal ones are equal."""
    identity = {"node": _NODES if node is None else st.just(node), "seq": _SEQS}
    changed = {**identity, "changed_at": _DATES, "device": st.none() | _WORDS}
    return st.one_of(
        st.builds(
            Notification,
            **identity,
            published_at=_DATES,
            subject=st.none() | _SUBJECTS,
            publisher=st.none() | _WORDS,
            attributes=_ATTRIBUTES,
            body=st.binary(max_size=40),
            qos=st.integers(0, 2),
            retain=st.booleans(),
            place=_PLACES,
            radius_m=st.none() | st.floats(0, 1_000),
            expires_at=st.none() | _TIMES,
            deadline_at=st.none() | _TIMES,
            keys=_KEYS,
            deliver_insecure=st.booleans(),
            properties=st.binary(max_size=8),
            will_seq=_COUNTS,
        ),
        st.builds(Notification, **identity, published_at=_DATES, qos=st.just(2), packet_id=_PACKET_IDS),
        st.builds(Notification, **identity, published_at=_DATES, attributes=_ATTRIBUTES, body=st.binary(max_size=40)),
        st.builds(InterestChanged, **changed, change=st.sampled_from(InterestChange), subscription=_subscriptions()),
        st.builds(
            PresenceChanged,
            **{**changed, "device": _WORDS},
            change=st.sampled_from([PresenceChange.CONNECTED, PresenceChange.DISCONNECTED]),
        ),
        st.builds(
            PresenceChanged,
            **{**changed, "device": _WORDS},
            change=st.sampled_from([PresenceChange.RELEASED, PresenceChange.COMPLETED]),
            packet_id=_PACKET_IDS,
        ),
        st.builds(
            PresenceChanged,
            **{**changed, "device": _WORDS},
            change=st.just(PresenceChange.DISCONNECTED),
            session_expiry_us=_COUNTS,
            sent_seq=_COUNTS,
        ),
        st.builds(
            PresenceChanged,
            **{**changed, "device": _WORDS},
            change=st.just(PresenceChange.LEFT),
            session=_WORDS,
            sent_seq=st.none() | _COUNTS,
        ),
        st.builds(
            PresenceChanged,
            **{**changed, "device": _WORDS},
            change=st.just(PresenceChange.JOINED),
            session=_WORDS,
            receipt=st.sampled_from(Mode),
            session_expiry_us=_COUNTS,
            confirms=st.none() | st.booleans(),
            owner=st.none() | _WORDS,
        ),
        st.builds(
            PresenceChanged,
            **{**changed, "device": _WORDS},
            change=st.just(PresenceChange.RECEIPTS),
            session=_WORDS,
            confirms=st.booleans(),
        ),
        st.builds(
            WillChanged,
            **{**changed, "device": _WORDS},
            change=st.just(WillChange.LEFT),
            will=_wills(),
        ),
        st.builds(WillChanged, **{**changed, "device": _WORDS}, change=st.just(WillChange.WITHDRAWN)),
        st.builds(
            SessionChanged, **changed, session=_WORDS, change=st.sampled_from(SessionChange), access=st.none() | _WORDS
        ),
        st.builds(Reported, **identity, state=_states()),
        _receipts(identity),
        st.builds(PolicyChanged, **changed, change=st.just(PolicyChange.PUT), owner=_WORDS, name=_WORDS, text=_WORDS),
        st.builds(PolicyChanged, **changed, change=st.just(PolicyChange.REMOVED), owner=_WORDS, name=_WORDS),
        st.builds(
            PolicyChanged,
            **{**changed, "device": _WORDS},
            change=st.just(PolicyChange.CHOSEN),
            owner=_WORDS,
            name=st.none() | _WORDS,
        ),
        _decisions(identity),
    )


def _wills() -> st.SearchStrategy[LastWill]:
    return st.builds(
        LastWill,
        subject=_WORDS,
        body=st.binary(max_size=40),
        qos=st.integers(0, MAX_QOS),
        retain=st.booleans(),
        delay_us=st.integers(0, INT32_MAX),
        expiry_us=_COUNTS,
        keys=_KEYS,
        deliver_insecure=st.booleans(),
        properties=st.binary(max_size=8),
    )


def _subscriptions() -> st.SearchStrategy[Subscription]:
    return st.builds(
        Subscription,
        session=_WORDS,
        subject_filter=st.none() | _WORDS,
        name=st.just("") | _WORDS,
        filter_text=st.none() | _WORDS,
        ttl_us=_COUNTS,
        max_held=st.none() | st.integers(0, INT32_MAX),
        policy=st.none() | _WORDS,
        near=_NEARS,
        stale_us=_COUNTS,
        keys=_KEYS,
        accept_insecure=st.booleans(),
        qos=st.none() | st.integers(0, MAX_QOS),
        no_local=st.booleans(),
        retain_as_published=st.booleans(),
        identifier=st.none() | st.integers(1, MAX_IDENTIFIER),
    )


def _states() -> st.SearchStrategy[DeviceState]:
    return st.builds(
        DeviceState,
        device=_WORDS,
        reported_at=_DATES,
        battery=_FRACTIONS,
        display=st.none() | _DISPLAYS,
        received=_COUNTS,
        sent=_COUNTS,
        place=st.none() | _PLACES,
        members=_ATTRIBUTES,
    )


def _decisions(identity: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Decided]:
    named = {
        **identity,
        "decided_at": _DATES,
        "session": _WORDS,
        "device": _WORDS,
        "notification": st.builds(NotificationId, _NODES, _SEQS),
        "policy_seq": _SEQS,
        "policy": _WORDS,
        "read": _ATTRIBUTES,
        "changed": _ATTRIBUTES,
        "removed": st.lists(st.sampled_from(["gone", "removed"]), max_size=2).map(tuple),
        "steps": _SEQS,
        "bytes_read": _SEQS,
        "pixels_read": _SEQS,
        "publisher": st.none() | _WORDS,
    }
    return st.one_of(
        st.builds(Decided, **named, outcome=st.just(Outcome.WITHHELD), reason=st.none() | _WORDS),
        st.builds(
            Decided,
            **named,
            outcome=st.just(Outcome.DELIVERED),
            body_hash=st.binary(min_size=32, max_size=32),
            body_bytes=st.integers(0, 99),
            body=st.none() | st.binary(max_size=9),
            attributes=st.none() | _ATTRIBUTES,
        ),
    )


def _receipts(identity: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Receipt]:
    return st.builds(
        Receipt,
        **identity,
        handed_at=_DATES,
        session=_WORDS,
        device=_WORDS,
        notification=st.builds(NotificationId, _NODES, _SEQS),
        subscriptions=st.lists(st.builds(SubscriptionIdentity, st.none() | _WORDS, _WORDS), max_size=3).map(tuple),
        outcome=st.sampled_from(Outcome),
        body_hash=st.none() | st.binary(min_size=32, max_size=32),
        via=st.sampled_from([None, "live", "held", "retained"]),
        battery=_FRACTIONS,
        network_connection=_FRACTIONS,
        display=st.none() | _DISPLAYS,
        published_at=st.none() | _DATES,
        subject=st.none() | _SUBJECTS,
    )
