"""``dead_letters``: rows of the log that break its contract, each with its reason; nothing is dropped silently.

Rule: what one ``Column`` can say is said by Spark itself; only filter texts go to Python, batch by batch.
Rule: a dead letter changes nothing; what was in force before it stays so.
Rule: a row has one reason, the first that was found; the good rows are exactly those without one.
Rule: a row is a dead letter exactly where ``model.rows.fact_of`` refuses it, and also where a subscription's filter is
none in any version, which that leaves to ``match``; a test holds the two together. Only two things are left to
Python alone, because Parquet does not bring them: texts that are no Unicode, and names of attributes beyond two
gigabytes.

Good rows, nearly all of them, pass a filter of bare conditions; reasons are put together only for the others. Judged
by one expression that makes the reasons too, publications took nearly twice as long.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows

from whimbrel.errors import InvalidInputError
from whimbrel.match.matcher import check_stored
from whimbrel.match.topics import check_topic_filter
from whimbrel.model.attributes import INT32_MAX, INT32_MIN, AttributeType
from whimbrel.model.bounds import FIRST_TIME, LAST_TIME, MAX_NAME_BYTES
from whimbrel.model.facts import MAX_ACCESS_BYTES, Mode, Outcome, PresenceChange, SessionChange, WillChange
from whimbrel.model.keys import DIGEST_BYTES, MAX_KEYS, Scheme
from whimbrel.model.notification import MAX_BODY_BYTES, MAX_PACKET_ID, MAX_QOS, MAX_SUBJECT_BYTES
from whimbrel.model.place import MAX_RADIUS_M
from whimbrel.model.policies import MAX_POLICY_BYTES, MAX_REASON_BYTES, MAX_REMOVED, PolicyChange
from whimbrel.model.subscription import (
    MAX_FILTER_BYTES,
    MAX_IDENTIFIER,
    MAX_SUBSCRIPTION_NAME_BYTES,
    InterestChange,
)
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.schemas import SCHEMAS, TIMES, log_table
from whimbrel.pipeline.snapshots import Missing

__all__ = ["Judge", "is_dated", "missing_letters", "split"]

_CONTENT_CHARACTERS = 4_096
_SCHEMES = [scheme.value for scheme in Scheme]
_DIGEST_BYTES = sorted(DIGEST_BYTES)


class Judge:
    """The rules of a table; whoever judges batch after batch makes them once, which takes longer than to apply them."""

    def __init__(self, table: str) -> None:
        log_table(table)
        rules = list(_rules(table))
        self._table, self._rules = table, rules
        self._is_bad = functools.reduce(operator.or_, (rule.is_broken for rule in rules))

    @functools.cached_property
    def _reason(self) -> Column:
        """Why a row is bad; not put together before somebody asks, because that takes as long as all the rest."""
        return F.coalesce(*(F.when(rule.is_broken, rule.reason()) for rule in self._rules))

    def good(self, rows: DataFrame) -> DataFrame:
        """Return the *rows* that keep the contract."""
        return rows.where(~self._is_bad)

    def dead(self, rows: DataFrame) -> DataFrame:
        """Return the others, as ``dead_letters``."""
        content = F.to_json(F.struct(*SCHEMAS[self._table].names))
        return rows.where(self._is_bad).select(
            F.current_timestamp().alias("found_at"),
            F.lit(f"log table {self._table}").alias("source"),
            F.col("seq").alias("position"),
            self._reason.alias("reason"),
            F.substring(content, 1, _CONTENT_CHARACTERS).cast("binary").alias("content"),
        )


def split(table: str, rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the *rows* of the log's *table* that keep the contract, and the others as ``dead_letters``.

    in:  a table of the log, as found
    out: the same table; the table ``dead_letters``
    """
    judge = Judge(table)
    return judge.good(rows), judge.dead(rows)


def missing_letters(missing: Iterable[Missing], now: int) -> Any:  # a pyarrow.Table
    """Return rows of ``dead_letters`` that say which numbers were not there to be read."""
    rows = [
        {"found_at": now, "source": f"log of {each.node}", "position": each.first, "reason": str(each), "content": None}
        for each in missing
    ]
    return pa.Table.from_pylist(rows, schema=TABLES["dead_letters"].schema)


class _Rule(NamedTuple):
    """Whether a row breaks it, never NULL, and what to tell if it does."""

    is_broken: Column
    reason: Callable[[], Column]


def _rules(table: str) -> Iterator[_Rule]:
    for column in SCHEMAS[table]:
        if not column.nullable:
            reason = f"{column.name}: found null, allowed is a value"
            yield _Rule(F.col(column.name).isNull(), functools.partial(F.lit, reason))
    yield _unless(F.col("seq") >= 0, "seq", "a number from 0 on")
    yield _node("node")
    yield _dated(TIMES[table])
    yield from _OWN_RULES[table]()


def _unless(is_fine: Column, name: str, allowed: str) -> _Rule:
    """Return the rule that *is_fine* is not false; undefined is fine."""

    def reason() -> Column:
        found = F.coalesce(F.col(name).cast("string"), F.lit("null"))
        return F.concat(F.lit(f"{name}: found "), found, F.lit(f", allowed is {allowed}"))

    return _Rule(~F.coalesce(is_fine, F.lit(True)), reason)


def is_dated(name: str) -> Column:
    """Return whether a column has a time that every calendar knows; null if it has none."""
    first, last = (F.timestamp_micros(F.lit(moment)) for moment in (FIRST_TIME, LAST_TIME))
    return F.col(name).between(first, last)


def _dated(name: str) -> _Rule:
    return _unless(is_dated(name), name, "a time in the years 1 to 9999")


def _one_of(name: str, words: Sequence[str]) -> _Rule:
    return _unless(F.col(name).isin(*words), name, ", ".join(words))


def _node(name: str) -> _Rule:
    # \A and \z: Java's $ would let a line's end pass.
    allowed = "1 to 64 letters, digits, '.', '_' and '-', the first a letter or digit"
    return _unless(F.col(name).rlike(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\z"), name, allowed)


def _text(name: str, *, max_bytes: int, min_bytes: int = 0) -> _Rule:
    size = F.octet_length(name)
    is_fine = size.between(min_bytes, max_bytes) & ~F.contains(name, F.lit("\0"))
    return _unless(is_fine, name, f"{min_bytes} to {max_bytes} bytes of text without U+0000")


def _name(name: str, *, max_bytes: int = MAX_NAME_BYTES) -> _Rule:
    return _text(name, max_bytes=max_bytes, min_bytes=1)


def _keys() -> _Rule:
    def is_key(each: Column) -> Column:
        is_fine = each["scheme"].isin(*_SCHEMES) & F.octet_length(each["digest"]).isin(*_DIGEST_BYTES)
        return F.coalesce(is_fine, F.lit(False))

    keys = F.col("keys")
    are_few = (F.size(keys) <= MAX_KEYS) | (F.size(F.array_distinct(keys)) <= MAX_KEYS)
    is_fine = (F.size(keys) == 0) | (F.forall(keys, is_key) & are_few)  # nearly always none
    return _unless(is_fine, "keys", f"at most {MAX_KEYS} of a scheme and a digest of 20 or 32 bytes")


def _display() -> _Rule:
    display = F.col("display")
    is_fine = F.coalesce((display["width_px"] >= 0) & (display["height_px"] >= 0), F.lit(False))
    return _unless(F.when(display.isNotNull(), is_fine), "display", "width and height from 0 on")


def _publications() -> Iterator[_Rule]:
    yield _name("publisher")
    yield _unless(F.col("qos").between(0, 2), "qos", "0 to 2")
    wildcard = F.contains("subject", F.lit("+")) | F.contains("subject", F.lit("#"))
    yield _unless((F.col("subject") != "") & ~wildcard, "subject", "a subject without the wildcards + and #")
    yield _name("subject", max_bytes=MAX_SUBJECT_BYTES)
    for each in ("body", "properties"):
        yield _unless(F.octet_length(each) <= MAX_BODY_BYTES, each, f"at most {MAX_BODY_BYTES} bytes")
    yield _keys()
    yield _unless(~(F.col("radius_m").isNotNull() & F.col("place").isNull()), "radius_m", "none without a place")
    yield _unless(F.col("radius_m").between(0, MAX_RADIUS_M), "radius_m", f"0 to {MAX_RADIUS_M}")
    yield _on_earth()
    yield _unless(F.col("packet_id").between(1, MAX_PACKET_ID), "packet_id", f"1 to {MAX_PACKET_ID}")
    yield _unless(F.col("packet_id").isNull() | (F.col("qos") == MAX_QOS), "packet_id", "none unless qos is 2")
    yield _unless(F.col("will_seq") >= 0, "will_seq", "a number from 0 on")
    yield from _values("attributes")


def _values(column: str) -> Iterator[_Rule]:
    """Yield the rules of named, typed values."""
    names = F.map_keys(column)
    yield _unless(F.size(F.array_distinct(names)) == F.size(names), column, "each name once")
    is_no_name = F.exists(names, lambda each: (each == "") | F.startswith(each, F.lit("\0")))
    yield _unless(~is_no_name, column, "names of at least one character, the first not U+0000")
    is_bad = F.exists(F.map_values(column), lambda entry: ~_is_attribute(entry))
    yield _Rule(F.coalesce(is_bad, F.lit(False)), functools.partial(_bad_attribute, column))


def _bad_attribute(column: str) -> Column:
    bad = F.get(F.filter(F.map_entries(column), lambda entry: ~_is_attribute(entry["value"])), F.lit(0))
    kind = F.coalesce(bad["value"]["type"].cast("string"), F.lit("null"))
    allowed = F.lit(", allowed is 1 to 5 with a value in the field of that type")
    return F.concat(F.lit("attribute "), bad["key"], F.lit(": found type "), kind, allowed)


def _is_attribute(entry: Column) -> Column:
    kind, integer = entry["type"], entry["int"]
    is_fine = (
        ((kind == int(AttributeType.INT32)) & integer.between(INT32_MIN, INT32_MAX))
        | ((kind == int(AttributeType.INT64)) & integer.isNotNull())
        | ((kind == int(AttributeType.REAL64)) & entry["real"].isNotNull())
        | ((kind == int(AttributeType.STRING)) & entry["text"].isNotNull())
        | ((kind == int(AttributeType.OPAQUE)) & entry["opaque"].isNotNull())
    )
    return F.coalesce(is_fine, F.lit(False))


def _interests() -> Iterator[_Rule]:
    yield _one_of("change", [change.value for change in InterestChange])
    yield _name("device")
    yield _name("session")
    yield _text("name", max_bytes=MAX_SUBSCRIPTION_NAME_BYTES)
    yield _text("filter_text", max_bytes=MAX_FILTER_BYTES)
    yield _name("policy")
    yield _keys()
    yield _on_earth("near")
    yield _unless(F.col("ttl_us") >= 0, "ttl_us", "a number from 0 on")
    yield _unless(F.col("max_held") >= 0, "max_held", "a number from 0 on")
    yield _unless(F.col("qos").between(0, MAX_QOS), "qos", "0 to 2")
    yield _unless(F.col("identifier").between(1, MAX_IDENTIFIER), "identifier", f"1 to {MAX_IDENTIFIER}")
    yield _judged(check_topic_filter, "subject_filter")
    yield _judged(check_stored, "filter_text")


def _presence() -> Iterator[_Rule]:
    change = F.col("change")
    yield _name("device")
    yield _name("session")
    yield _one_of("change", [each.value for each in PresenceChange])
    of_session = (PresenceChange.JOINED.value, PresenceChange.LEFT.value, PresenceChange.RECEIPTS.value)
    is_of_session = change.isin(*of_session)
    fits = is_of_session == F.col("session").isNotNull()
    yield _unless(fits, "session", "a session where a device joins, leaves or changes its receipts, else none")
    joins = (change == PresenceChange.JOINED.value) == F.col("receipt").isNotNull()
    yield _unless(joins, "receipt", "take or keep where a device joins, else none")
    yield _one_of("receipt", [mode.value for mode in Mode])
    is_of_a_packet = change.isin(PresenceChange.RELEASED.value, PresenceChange.COMPLETED.value)
    fits = is_of_a_packet == F.col("packet_id").isNotNull()
    yield _unless(fits, "packet_id", "one where a packet is released or completed, else none")
    yield _unless(F.col("packet_id").between(1, MAX_PACKET_ID), "packet_id", f"1 to {MAX_PACKET_ID}")
    may_expire = change.isin(PresenceChange.JOINED.value, PresenceChange.DISCONNECTED.value)
    is_fine = F.col("session_expiry_us").isNull() | may_expire
    yield _unless(is_fine, "session_expiry_us", "none unless joined or disconnected")
    yield _unless(F.col("session_expiry_us") >= 0, "session_expiry_us", "a number from 0 on")
    is_fine = F.col("sent_seq").isNull() | (change == PresenceChange.DISCONNECTED.value)
    yield _unless(is_fine, "sent_seq", "none unless disconnected")
    yield _unless(F.col("sent_seq") >= 0, "sent_seq", "a number from 0 on")
    may_confirm = change.isin(PresenceChange.JOINED.value, PresenceChange.RECEIPTS.value)
    yield _unless(F.col("confirms").isNull() | may_confirm, "confirms", "none unless joined or receipts")
    is_said = (change != PresenceChange.RECEIPTS.value) | F.col("confirms").isNotNull()
    yield _unless(is_said, "confirms", "true or false where it changes")
    yield _unless(F.col("owner").isNull() | (change == PresenceChange.JOINED.value), "owner", "none unless joined")
    yield _name("owner")


def _sessions() -> Iterator[_Rule]:
    yield _one_of("change", [change.value for change in SessionChange])
    yield _name("session")
    yield _name("device")
    yield _text("access", max_bytes=MAX_ACCESS_BYTES)


def _reports() -> Iterator[_Rule]:
    yield _name("device")
    yield _display()
    yield _unless(F.col("battery").between(0, 1), "battery", "0 to 1")
    yield _unless(F.col("received") >= 0, "received", "a number from 0 on")
    yield _unless(F.col("sent") >= 0, "sent", "a number from 0 on")
    yield _on_earth()
    yield from _values("members")


def _receipts() -> Iterator[_Rule]:
    yield _one_of("outcome", [outcome.value for outcome in Outcome])
    yield _one_of("via", ["live", "held", "retained"])
    yield _unless(F.length("body_hash") == 32, "body_hash", "32 bytes of SHA-256")
    yield _name("session")
    yield _name("device")
    yield _node("notification_node")
    yield _unless(F.col("notification_seq") >= 0, "notification_seq", "a number from 0 on")
    are_named = F.forall("subscriptions", lambda each: each["name"].isNotNull())
    yield _unless(are_named, "subscriptions", "a name in each")
    for each in ("battery", "network_connection"):
        yield _unless(F.col(each).between(0, 1), each, "0 to 1")
    yield _display()
    yield _dated("published_at")
    yield _name("subject", max_bytes=MAX_SUBJECT_BYTES)


def _wills() -> Iterator[_Rule]:
    yield _one_of("change", [each.value for each in WillChange])
    yield _name("device")
    # Nothing else is said of a will that was withdrawn, so nothing else of it is read.
    is_left = F.coalesce(F.col("change") == WillChange.LEFT.value, F.lit(False))
    for rule in _of_a_will():
        yield _Rule(is_left & rule.is_broken, rule.reason)


def _of_a_will() -> Iterator[_Rule]:
    yield _unless(F.col("subject").isNotNull(), "subject", "one where a will is left")
    yield _name("subject", max_bytes=MAX_SUBJECT_BYTES)
    yield _unless(F.col("qos").between(0, MAX_QOS), "qos", "0 to 2")
    for each in ("body", "properties"):
        yield _unless(F.octet_length(each) <= MAX_BODY_BYTES, each, f"at most {MAX_BODY_BYTES} bytes")
    for each in ("delay_us", "expiry_us"):
        yield _unless(F.col(each) >= 0, each, "a number from 0 on")
    yield _keys()


def _policies() -> Iterator[_Rule]:
    change = F.col("change")
    yield _one_of("change", [each.value for each in PolicyChange])
    for each in ("owner", "name", "device"):
        yield _name(each)
    is_chosen = change == PolicyChange.CHOSEN.value
    yield _unless(is_chosen | F.col("name").isNotNull(), "name", "a name unless a device chooses none")
    yield _unless(~is_chosen | F.col("device").isNotNull(), "device", "the device that chose")
    fits = (change == PolicyChange.PUT.value) == F.col("text").isNotNull()
    yield _unless(fits, "text", "the policy where it is put, else none")
    yield _text("text", max_bytes=MAX_POLICY_BYTES)


def _decisions() -> Iterator[_Rule]:
    yield _one_of("outcome", [Outcome.DELIVERED.value, Outcome.WITHHELD.value])
    is_sent = F.col("outcome") == Outcome.DELIVERED.value
    for each in ("session", "device", "policy"):
        yield _name(each)
    yield _node("notification_node")
    for each in ("notification_seq", "policy_seq", "steps", "bytes_read", "pixels_read"):
        yield _unless(F.col(each) >= 0, each, "a number from 0 on")
    yield _text("reason", max_bytes=MAX_REASON_BYTES)
    for each in ("body_hash", "body_bytes"):
        yield _unless(F.col(each).isNotNull() == is_sent, each, "one where it is delivered, else none")
    for each in ("body", "attributes"):
        yield _unless(F.col(each).isNull() | is_sent, each, "none where it is withheld")
    yield _unless(F.length("body_hash") == 32, "body_hash", "32 bytes of SHA-256")
    yield _unless(F.col("body_bytes").between(0, MAX_BODY_BYTES), "body_bytes", f"0 to {MAX_BODY_BYTES}")
    yield _unless(F.octet_length("body") <= MAX_BODY_BYTES, "body", f"at most {MAX_BODY_BYTES} bytes")
    for each in ("attributes", "read", "changed"):
        yield from _values(each)
    removed = F.col("removed")
    yield _unless(F.size(removed) <= MAX_REMOVED, "removed", f"at most {MAX_REMOVED} names")

    def is_name(each: Column) -> Column:
        is_fine = F.octet_length(each).between(1, MAX_NAME_BYTES) & ~F.contains(each, F.lit("\0"))
        return F.coalesce(is_fine, F.lit(False))

    yield _unless(F.forall(removed, is_name), "removed", f"names of 1 to {MAX_NAME_BYTES} bytes without U+0000")
    was_set = F.arrays_overlap(removed, F.map_keys("changed"))
    yield _unless(~was_set, "removed", "names that were not set")


def _on_earth(name: str = "place") -> _Rule:
    """Return the rule of a place, or of an area."""
    place, allowed = F.col(name), "latitude -90 to 90 and longitude -180 to 180"
    is_fine = place["latitude"].between(-90, 90) & place["longitude"].between(-180, 180)
    if name == "near":
        is_fine &= place["radius_m"].between(0, MAX_RADIUS_M)
        allowed += f" and radius_m 0 to {MAX_RADIUS_M}"
    is_fine = F.when(place.isNotNull(), F.coalesce(is_fine, F.lit(False)))
    return _unless(is_fine, name, allowed)


_OWN_RULES: dict[str, Callable[[], Iterator[_Rule]]] = {
    "publications": _publications,
    "interests": _interests,
    "presence": _presence,
    "sessions": _sessions,
    "reports": _reports,
    "receipts": _receipts,
    "wills": _wills,
    "policies": _policies,
    "decisions": _decisions,
}


def _judged(check: Callable[[str], object], name: str) -> _Rule:
    """Return the rule that *check* takes the column *name*; of a batch each distinct text is looked at once."""

    def reason(text: str) -> str | None:
        try:
            check(text)
        except InvalidInputError as error:
            return f"{name}: {error}"
        return None

    def reasons(texts: pa.Array) -> pa.Array:
        encoded = texts.dictionary_encode()
        return pa.array(map(reason, encoded.dictionary.to_pylist()), pa.string()).take(encoded.indices)

    found = cast("Column", F.arrow_udf(reasons, "string")(F.col(name)))  # type: ignore[attr-defined]  # pyspark's stubs of F lack it
    return _Rule(found.isNotNull(), lambda: found)
