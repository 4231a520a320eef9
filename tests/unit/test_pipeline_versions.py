"""Intervals: when each subscription was in force, against replaying the log fact by fact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.subscriptions.versions import (
    CHANGED,
    DELETED,
    PackedVersions,
    open_intervals,
    pack_versions,
    touched_sessions,
    validity_intervals,
)

Fact = tuple[str, str, str, str | None]
"""Node, session, change (deleted is the session's) and subject filter; its place in a list is its number."""

facts_of_two_nodes = st.lists(
    st.tuples(
        st.sampled_from("mn"),
        st.sampled_from("st"),
        st.sampled_from(["added", "modified", "removed", "deleted", "created"]),
        st.sampled_from(["a", "b", None]),
    ),
    max_size=25,
)


def tables(facts: list[Fact]) -> tuple[Any, Any]:
    """Return the facts as tables ``interests`` and ``sessions``, in no order; times are ten times the numbers."""
    rows: dict[str, list[dict[str, Any]]] = {"interests": [], "sessions": []}
    for seq, (node, session, change, subject_filter) in reversed(list(enumerate(facts))):
        row = {"node": node, "seq": seq, "changed_at": 10 * seq, "change": change, "session": session}
        if change in {"deleted", "created"}:
            rows["sessions"].append(row)
        else:
            more = {"subject_filter": subject_filter, "name": "", "filter_text": f"v == {seq}", "accept_insecure": True}
            rows["interests"].append(row | more)
    return _table("interests", CHANGED, rows["interests"]), _table("sessions", DELETED, rows["sessions"])


def _table(name: str, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> Any:
    fields = [TABLES[name].schema.field(column).with_nullable(True) for column in columns]
    return pa.table(
        [pa.array([row.get(field.name) for row in rows], field.type) for field in fields], schema=pa.schema(fields)
    )


def naive(facts: list[Fact]) -> list[tuple[str, str, str | None, int, int]]:
    """Return each interval by looking ahead from its beginning."""
    found = []
    for seq, (node, session, change, subject_filter) in enumerate(facts):
        if change in {"added", "modified"}:
            ends = [later for later in range(seq + 1, len(facts)) if is_ended(facts[seq], facts[later])]
            found.append((node, session, subject_filter, seq, min(ends, default=INT64_MAX)))
    return sorted(found, key=lambda interval: (interval[0], interval[3]))


def is_ended(subscription: Fact, later: Fact) -> bool:
    """Tell whether *later* ends what *subscription* began: with its session, or as another change of the same."""
    if subscription[:2] != later[:2] or later[2] == "created":
        return False
    return later[2] == "deleted" or later[3] == subscription[3]


@given(facts=facts_of_two_nodes)
def test_validity_intervals_end_with_the_next_change_or_the_session(facts: list[Fact]) -> None:
    """One meaning for matching and counting: numbers decide, of each node alone."""
    found = validity_intervals(*tables(facts))
    names = ("node", "session", "subject_filter", "interest_seq", "ended_seq")
    rows = list(zip(*(found.column(name).to_pylist() for name in names), strict=True))
    assert rows == naive(facts)
    times = [found.column(name).cast(pa.int64()).to_pylist() for name in ("began_at", "ended_at")]
    assert times[0] == [10 * seq for *_, seq, _ in rows]
    assert times[1] == [None if ended == INT64_MAX else 10 * ended for *_, ended in rows]


def test_the_other_columns_go_along() -> None:
    """What a subscription asked for is what the matcher is packed from."""
    interests, _ = tables([("n", "s", "added", "a"), ("n", "s", "modified", "a")])
    found = validity_intervals(interests)
    assert found.column("filter_text").to_pylist() == ["v == 0", "v == 1"]
    assert {*CHANGED, "interest_seq", "ended_seq", "began_at", "ended_at"} - {"seq", "changed_at"} == {
        *found.column_names
    }


def test_without_sessions_nothing_is_deleted() -> None:
    """Whoever knows of none need not make an empty table."""
    interests, sessions = tables([("n", "s", "added", "a"), ("n", "s", "deleted", None)])
    assert validity_intervals(interests, sessions).column("ended_seq").to_pylist() == [1]
    assert validity_intervals(interests).column("ended_seq").to_pylist() == [INT64_MAX]


@given(facts=facts_of_two_nodes)
def test_what_is_in_force_is_an_interval_that_goes_on(facts: list[Fact]) -> None:
    """The fast way for what never changed is the other way, row by row."""
    found = validity_intervals(*tables(facts))
    goes_on = set(found.filter(pc.equal(found.column("ended_seq"), INT64_MAX)).column("interest_seq").to_pylist())
    interests, _ = tables(facts)
    in_force = interests.filter(pc.is_in(interests.column("seq"), pa.array(goes_on, pa.int64())))
    assert open_intervals(in_force).equals(validity_intervals(in_force))


@given(facts=facts_of_two_nodes)
def test_whoever_is_not_touched_has_what_it_had(facts: list[Fact]) -> None:
    """Sessions that come do not change what is in force, those that go do."""
    own = [fact for fact in facts if fact[0] == "n"]
    for cut in range(len(own)):
        changes = tables([*own[:cut], *own[cut:]])
        later = [table.filter(pc.greater_equal(table.column("seq"), cut)) for table in changes]
        for session in {"s", "t"} - touched_sessions(*later):
            before, after = naive(own[:cut]), naive(own)
            assert [each for each in before if each[1] == session] == [each for each in after if each[1] == session]


def test_a_filter_that_only_an_older_version_could_read_matches_nothing(tmp_path: Path) -> None:
    """The state of a stream may have one; to pack it raised."""
    interests, sessions = tables([("n", "s", "added", "a"), ("n", "s", "added", "b")])
    texts = pa.array(["regex(v, '(')", "v == 1"])
    interests = interests.set_column(interests.schema.get_field_index("filter_text"), "filter_text", texts)
    pack_versions(tmp_path / "packed", validity_intervals(interests, sessions))
    versions = PackedVersions.map(str(tmp_path / "packed"), "n")
    assert len(versions.matcher) == 2
    assert [len(versions.matcher.match_parts(subject, {"v": 1})) for subject in ("a", "b")] in ([0, 1], [1, 0])
