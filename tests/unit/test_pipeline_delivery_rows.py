"""Rows of deliveries: outcomes that come for a whole session make the same rows as one outcome for each device."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from whimbrel.hold.commands import Identity, Settle
from whimbrel.hold.folding import Grouped, one_by_one
from whimbrel.hold.rules.assumed import SessionOutcomes
from whimbrel.hold.state import AssumedResult, Session
from whimbrel.model.facts import Outcome
from whimbrel.pipeline.fold.delivery_rows import Rows
from whimbrel.pipeline.fold.described import Described, HeldValues

IDENTITIES: tuple[tuple[Identity, ...], ...] = ((("a", ""),), (("a", ""), ("a/#", "x")), ((None, "all"),))
BY = [(name, "ascending") for name in ("notification_seq", "session", "device", "outcome")]


def _result(random: Random, number: int) -> AssumedResult:
    result = AssumedResult(Session(f"s{number}"), random.choice(IDENTITIES))
    result.present = tuple(f"d{each}" for each in range(random.randint(0, 3)))
    result.absent = random.choice(((), (None,) if not result.present else (), ("e1",), ("e1", "e2")))
    result.outcome = random.choice((Outcome.DROPPED, Outcome.TAKEN_ELSEWHERE))
    result.ended = result.identities[:1]
    return result


def _outcomes(random: Random) -> Grouped:
    results = [_result(random, number) for number in range(4)]
    found: list[Settle | SessionOutcomes] = []
    for seq in range(1, random.randint(2, 20)):
        values = HeldValues(bytes([seq]) * 32, 1_000 + seq, random.choice((None, "a", "é")), random.choice((None, 5)))
        kept = Described(seq, values)
        lapses_at = random.choice((None, 3_000 + seq))
        found += [SessionOutcomes(result, kept, 2_000 + seq, lapses_at) for result in random.sample(results, 3)]
        if random.random() < 0.3:
            found.append(Settle("t", None, seq, IDENTITIES[0], Outcome.EXPIRED, 9, None, kept=kept))
    return found


def _table(outcomes: Grouped) -> Any:
    rows = Rows("n")
    rows.extend(outcomes)
    count = len(rows)
    batches = list(rows.batches())
    assert (len(rows), list(rows.batches())) == (0, [])
    table = pa.Table.from_batches(batches).sort_by(BY)
    assert table.num_rows == count
    return table


@pytest.mark.parametrize("seed", range(20))
def test_outcomes_of_sessions_make_the_rows_of_their_devices(seed: int) -> None:
    """Devices that are there and away, sessions without devices, publications without a subject."""
    outcomes = _outcomes(Random(seed))
    each = one_by_one(outcomes)
    assert not any(isinstance(one, SessionOutcomes) for one in each)
    assert _table(outcomes).equals(_table(each))
