"""What travels of publications to the fold for policies: their bodies only where a policy may need them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from whimbrel.log.columns import to_arrow
from whimbrel.model.attributes import checked
from whimbrel.model.facts import PolicyChange, PolicyChanged
from whimbrel.model.notification import Notification
from whimbrel.model.rows import row_of
from whimbrel.pipeline.fold.events import Seen, published_events
from whimbrel.pipeline.fold.shards import LogPolicies

BODY = b'{"pulse": 44, "room": "4"}'


class Found:
    """One subscription, number 7, in the group 0."""

    groups, begun = np.array([0], np.int32), np.array([7], np.int64)


def put(*texts: str) -> LogPolicies:
    """Return the policies of a log in which these were put."""
    facts = [
        PolicyChanged(node="n", seq=at, changed_at=at, change=PolicyChange.PUT, owner="o", name=f"p{at}", text=text)
        for at, text in enumerate(texts, start=1)
    ]
    return LogPolicies(to_arrow("policies", [row_of(fact)[1] for fact in facts]))


@pytest.mark.parametrize(
    ("texts", "seen"),
    [
        ((), Seen.NOTHING),
        (("return m;",), Seen.ATTRIBUTES),
        (("if (m.pulse > 50) { return NULL; } state.n = 1; return m;",), Seen.ATTRIBUTES),
        (("return project(m, 'pulse');",), Seen.BODIES),
        (("m.pulse = 1; return m;",), Seen.BODIES),
        (("return m;", "return project(m, 'pulse');", "return m;"), Seen.BODIES),
    ],
)
def test_bodies_are_read_only_where_a_policy_may_need_them(texts: tuple[str, ...], seen: Seen) -> None:
    """Attributes only where there is a policy; and what is not seen does not travel."""
    assert put(*texts).seen is seen
    publication = Notification(
        node="n", seq=9, published_at=9, subject="t", publisher="x", attributes=checked({"pulse": 44}), body=BODY
    )
    batch = to_arrow("publications", [row_of(publication)[1]]).combine_chunks().to_batches()[0]
    (events,) = published_events(batch, Found(), np.array([0]), np.array([0]), seen=seen)  # type: ignore[arg-type]
    told = pa.Table.from_batches([events]).to_pylist()[0]
    assert told["body"] == (BODY if seen is Seen.BODIES else None)
    assert told["body_bytes"] == (None if seen is Seen.NOTHING else len(BODY))
    assert (told["content"] is None) == (seen is Seen.NOTHING)
