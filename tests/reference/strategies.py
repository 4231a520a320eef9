"""Hypothesis strategies for filters, attributes and facts (needs hypothesis, which Whimbrel itself does not).

The trees pass the static check; the attributes miss some names, mistype others and love edges, because that is where
three-valued logic, promotion and wrap-around show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

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
from whimbrel.model.columns import LOG_SPECS, Column, Kind
from whimbrel.model.device import DeviceState, Display
from whimbrel.model.facts import (
    Decided,
    Fact,
    InterestChanged,
    Outcome,
    PolicyChange,
    PolicyChanged,
    PresenceChange,
    PresenceChanged,
    Reported,
    WillChange,
    WillChanged,
)
from whimbrel.model.keys import KeyHash, KeyHashes, Scheme
from whimbrel.model.near import ANYWHERE, Around, Near
from whimbrel.model.notification import MAX_PACKET_ID, MAX_QOS, Notification, NotificationId
from whimbrel.model.place import Area, Place
from whimbrel.model.polygon import Polygon
from whimbrel.model.rows import COLUMNS
from whimbrel.model.subscription import Subscription, SubscriptionIdentity
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
_ATTRIBUTES = st.dictionaries(names(), scalars().filter(lambda value: value == value), max_size=4)  # noqa: PLR0124 # NaN
_OF_KIND: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.NODE: _NODES,
    Kind.FLAG: st.booleans(),
    Kind.BODY: st.binary(max_size=40),
    Kind.HASH: st.binary(min_size=32, max_size=32),
    Kind.PROPERTIES: st.binary(max_size=8),
    Kind.ATTRIBUTES: _ATTRIBUTES,
    Kind.KEYS: _KEYS,
    Kind.PLACE: _PLACES,
    Kind.DISPLAY: _DISPLAYS,
    Kind.SUBSCRIPTIONS: st.lists(st.builds(SubscriptionIdentity, st.none() | _WORDS, _WORDS), max_size=3).map(tuple),
    Kind.TEXTS: st.lists(st.sampled_from(["gone", "removed"]), max_size=2).map(tuple),
}
_NOT_FIELDS = {"near", "around_m", "corners", "hears_anywhere", "notification_node", "notification_seq"}
"""Columns that are no field of their name."""
_IDS = st.builds(NotificationId, _NODES, _SEQS)


def _values(column: Column) -> st.SearchStrategy[Any]:
    """Return the values of the field that a column is of, edges first."""
    if column.words:
        found: st.SearchStrategy[Any] = st.sampled_from([*column.words])
    elif column.kind in _OF_KIND:
        found = _OF_KIND[column.kind]
    else:
        assert column.least is not None
        assert column.most is not None
        least, most = int(column.least), int(column.most)
        if column.kind is Kind.TEXT:
            some = st.characters(codec="utf-8", exclude_characters=column.without)
            found = st.text(some, min_size=least, max_size=8)
        elif column.kind is Kind.REAL:
            found = st.floats(column.least, column.most)
        elif column.kind is Kind.TIME:
            found = st.one_of(st.sampled_from([least, -1, 0, most]), st.integers(least, most))
        else:
            found = st.one_of(st.integers(least, min(99, most)), st.integers(least, most))
    return st.none() | found if column.is_nullable and column.default is None else found


def _of(table: str, begin: str = "node", end: str | None = None) -> dict[str, st.SearchStrategy[Any]]:
    """Return the fields of a table's columns from *begin* to before *end*, by name."""
    columns = COLUMNS[table]
    first, last = columns.index(begin), len(columns) if end is None else columns.index(end)
    spec = LOG_SPECS[table].columns[first:last]
    return {column.name: _values(column) for column in spec if column.name not in _NOT_FIELDS}


def facts(*, node: str | None = None) -> st.SearchStrategy[Fact]:
    """Return facts of every table, edges first; of one *node* or of any. None holds a NaN, so equal ones are equal."""
    whose = {} if node is None else {"node": st.just(node)}
    return st.one_of(*(found for table in LOG_SPECS for found in _FACTS.get(table, _flat)(table, whose)))


_Whose: TypeAlias = dict[str, st.SearchStrategy[str]]
_Facts: TypeAlias = Iterator[st.SearchStrategy[Fact]]


def _flat(table: str, whose: _Whose) -> _Facts:
    """Yield facts whose columns may have any values beside each other."""
    notification = {"notification": _IDS} if "notification_seq" in COLUMNS[table] else {}
    fact: Any = LOG_SPECS[table].fact
    yield st.builds(fact, **{**_of(table), **notification, **whose})


def _publications(table: str, whose: _Whose) -> _Facts:
    # a radius needs a place, and a packet id QoS 2
    yield st.builds(Notification, **{**_of(table), "place": _PLACES, "packet_id": st.none(), **whose})
    few = {**_of(table, end="publisher"), **whose}
    yield st.builds(Notification, **few, qos=st.just(MAX_QOS), packet_id=st.integers(1, MAX_PACKET_ID))
    yield st.builds(Notification, **few, attributes=_ATTRIBUTES, body=st.binary(max_size=40))


def _interests(table: str, whose: _Whose) -> _Facts:
    subscriptions = st.builds(Subscription, **_of(table, "session"), near=_NEARS)
    yield st.builds(InterestChanged, **{**_of(table, end="session"), **whose}, subscription=subscriptions)


def _presence(table: str, whose: _Whose) -> _Facts:
    fields = {**_of(table), **whose}
    for changes, names_of_change in _OF_CHANGES:
        chosen = {name: fields[name] for name in ("node", "seq", "changed_at", "device")}
        chosen |= {name.rstrip("!"): fields[name.rstrip("!")] for name in names_of_change}
        needed = [name.rstrip("!") for name in names_of_change if name.endswith("!")]
        chosen |= {name: chosen[name].filter(lambda value: value is not None) for name in needed}
        yield st.builds(PresenceChanged, **chosen, change=st.sampled_from(changes))


_OF_CHANGES: tuple[tuple[list[PresenceChange], list[str]], ...] = (
    ([PresenceChange.CONNECTED, PresenceChange.DISCONNECTED], []),
    ([PresenceChange.RELEASED, PresenceChange.COMPLETED], ["packet_id!"]),
    ([PresenceChange.DISCONNECTED], ["session_expiry_us", "sent_seq"]),
    ([PresenceChange.LEFT], ["session!", "sent_seq"]),
    ([PresenceChange.JOINED], ["session!", "receipt!", "session_expiry_us", "confirms", "owner"]),
    ([PresenceChange.RECEIPTS], ["session!", "confirms!"]),
)
"""The columns that belong to a change; ``!``: it must have one."""


def _reports(table: str, whose: _Whose) -> _Facts:
    state = st.builds(DeviceState, **_of(table, "reported_at"))
    yield st.builds(Reported, **{**_of(table, end="reported_at"), **whose}, state=state)


def _wills(table: str, whose: _Whose) -> _Facts:
    head = {**_of(table, end="change"), **whose}
    will = st.builds(LastWill, **{**_of(table, "subject"), "subject": _SUBJECTS})
    yield st.builds(WillChanged, **head, change=st.just(WillChange.LEFT), will=will)
    yield st.builds(WillChanged, **head, change=st.just(WillChange.WITHDRAWN))


def _policies(table: str, whose: _Whose) -> _Facts:
    fields = {**_of(table), **whose}
    del fields["change"], fields["text"], fields["name"], fields["device"]
    device = st.none() | _WORDS
    put, removed = st.just(PolicyChange.PUT), st.just(PolicyChange.REMOVED)
    yield st.builds(PolicyChanged, **fields, change=put, name=_WORDS, text=_WORDS, device=device)
    yield st.builds(PolicyChanged, **fields, change=removed, name=_WORDS, device=device)
    chosen = st.just(PolicyChange.CHOSEN)
    yield st.builds(PolicyChanged, **fields, change=chosen, name=st.none() | _WORDS, device=_WORDS)


def _decisions(table: str, whose: _Whose) -> _Facts:
    fields = {**_of(table), "notification": _IDS, **whose}
    sent = {name: fields.pop(name) for name in ("body_hash", "body_bytes", "body", "attributes")}
    del fields["outcome"]
    yield st.builds(Decided, **fields, outcome=st.just(Outcome.WITHHELD))
    is_sent = {name: sent[name].filter(lambda value: value is not None) for name in ("body_hash", "body_bytes")}
    yield st.builds(Decided, **{**fields, **sent, **is_sent}, outcome=st.just(Outcome.DELIVERED))


_FACTS: dict[str, Callable[[str, _Whose], _Facts]] = {
    "publications": _publications,
    "interests": _interests,
    "presence": _presence,
    "reports": _reports,
    "wills": _wills,
    "policies": _policies,
    "decisions": _decisions,
}
"""Tables with rules between their columns, or whose facts nest a value."""
