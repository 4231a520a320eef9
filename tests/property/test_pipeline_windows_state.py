"""What a stream remembers of time, against everything in plain dictionaries: nothing forgotten, nothing stored."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.hold.store.interface import RowStore
from whimbrel.hold.store.memory import MemoryStore
from whimbrel.model.tables import TABLES, TIME_TYPE
from whimbrel.pipeline.files.waiting_windows import merge_window
from whimbrel.pipeline.stream import windows as windows_module
from whimbrel.pipeline.stream.state import blob_store
from whimbrel.pipeline.stream.state.blob_store import BlobStore, MemoryBlobs
from whimbrel.pipeline.stream.windows import Windows
from whimbrel.pipeline.tables.latency import EXPIRED, MISSED, TALLY, measure

W, HORIZON_US = 10, 45
SUBJECTS = ("a", "b", "c")
INTERVALS = pa.schema(
    [
        ("node", pa.string()),
        ("interest_seq", pa.int64()),
        ("session", pa.string()),
        ("subject_filter", pa.string()),
        ("began_at", TIME_TYPE),
        ("ended_at", TIME_TYPE),
    ]
)


class Batch(NamedTuple):
    """What happens in a batch; times are said as how long ago."""

    passes: int
    added: list[tuple[str, str | None]]
    """Session and subject filter of subscriptions that begin."""
    ended: list[int]
    """Which of those in force end."""
    published: list[tuple[int, str]]
    decided: list[tuple[int, str, int]]
    mark_ago: int
    held_ago: int
    is_restarted: bool


ago, subject = st.integers(0, 60), st.sampled_from(SUBJECTS)
batches = st.builds(
    Batch,
    passes=st.sampled_from([0, 1, 5, 10, 10, 20, 25]),  # often to the end of a window
    added=st.lists(st.tuples(st.sampled_from(["s1", "s2"]), st.sampled_from([None, *SUBJECTS])), max_size=2),
    ended=st.lists(st.integers(0, 5), max_size=2),
    published=st.lists(st.tuples(ago, subject), max_size=4),
    decided=st.lists(st.tuples(ago, subject, st.sampled_from([EXPIRED, MISSED, 0, 1, 300])), max_size=4),
    mark_ago=st.sampled_from([0, 0, 1, 10, 13, 40]),
    held_ago=ago,
    is_restarted=st.booleans(),
)


@dataclass
class Everything:
    """All there ever was, in plain dictionaries."""

    counts: Counter[tuple[int, str]] = field(default_factory=Counter)
    tallies: Counter[tuple[int, str, int]] = field(default_factory=Counter)
    intervals: list[list[Any]] = field(default_factory=list)
    """Session, subject filter, from and until when, None if it goes on."""

    def popularity(self) -> dict[tuple[int, str], tuple[int, int]]:
        """Return publications and subscribers by window and subject."""
        return {key: (number, self._subscribers(*key)) for key, number in self.counts.items()}

    def _subscribers(self, window: int, subject: str) -> int:
        end = window + W
        return len(
            {
                session
                for session, wanted, began, ended in self.intervals
                if began < end and (ended is None or ended >= end) and wanted in {None, subject}
            }
        )

    def plan(self) -> dict[str, int]:
        """Return the subscribers of each subject's last window, of those that were not silent for long."""
        last = {
            subject: (window + W, subscribers)
            for (window, subject), (_, subscribers) in sorted(self.popularity().items())
        }
        newest = max((end for end, _ in last.values()), default=0)
        return {subject: number for subject, (end, number) in last.items() if end > newest - HORIZON_US}

    def latency(self) -> list[dict[str, Any]]:
        """Return the table of latencies."""
        rows = [(*key, number) for key, number in self.tallies.items()]
        table = pa.Table.from_pylist([dict(zip(TALLY.names, row, strict=True)) for row in rows], schema=TALLY)
        found: list[dict[str, Any]] = measure(table, window_us=W).to_pylist()
        return found


class Played:
    """A stream's windows over batches, its tables, and everything beside them."""

    def __init__(self, store: RowStore) -> None:
        self.store, self.now, self.everything = store, 1_000, Everything()
        self.windows = self._opened()
        self.tables: dict[str, dict[int, Any]] = {"popularity": {}, "latency": {}}
        self.final = [0, 0]
        self.plan: dict[str, int] = {}

    def _opened(self) -> Windows:
        return Windows(self.store, window_us=W, horizon_us=HORIZON_US)

    def take(self, number: int, batch: Batch) -> None:
        """Do what a stream does with a batch."""
        self.now += batch.passes
        late = self._taken_in(batch)
        self._change(batch)
        assert late == self._late(batch)
        self._written("popularity", self.windows.popularity())
        self._written("latency", self.windows.latency())
        self.windows.forget()
        plan = self.windows.subscribers
        self.plan = self.plan if plan is None else plan
        assert self.plan == self.everything.plan()
        mark, held = self.now - batch.mark_ago, self.now - batch.held_ago
        self.windows.hear("n", mark, held)
        self.windows.advance(mark)
        self.windows.commit(number)
        self.final = [max(self.final[0], mark), max(self.final[1], min(mark, held))]
        if batch.is_restarted:
            self.windows = self._opened()

    def _window(self, ago: int) -> int:
        return (self.now - ago) // W * W

    def _taken_in(self, batch: Batch) -> Counter[tuple[str, int]]:
        late = self.windows.count((self._window(ago), subject, 1) for ago, subject in batch.published)
        rows = [(self._window(ago), subject, what, 1) for ago, subject, what in batch.decided]
        table = pa.Table.from_pylist([dict(zip(TALLY.names, row, strict=True)) for row in rows], schema=TALLY)
        late += self.windows.tally(table)
        return Counter((each.table, each.window) for each in late)

    def _late(self, batch: Batch) -> Counter[tuple[str, int]]:
        """Return what is late by the rule, and note the rest."""
        late = Counter[tuple[str, int]]()
        for ago, subject in batch.published:
            window = self._window(ago)
            if window + W <= self.final[0]:
                late["popularity", window] += 1
            else:
                self.everything.counts[window, subject] += 1
        for ago, subject, what in batch.decided:
            window = self._window(ago)
            if window + W <= self.final[1]:
                late["latency", window] += 1
            else:
                self.everything.tallies[window, subject, what] += 1
        return late

    def _change(self, batch: Batch) -> None:
        """Begin and end intervals, all of them now: what comes for a final window would be late."""
        known = self.everything.intervals
        goes_on = [number for number, interval in enumerate(known) if interval[3] is None]
        changed = {goes_on[each] for each in batch.ended if each < len(goes_on)}
        for number in changed:
            known[number][3] = self.now
        changed |= set(range(len(known), len(known) + len(batch.added)))
        known += [[session, wanted, self.now, None] for session, wanted in batch.added]
        rows = [dict(zip(INTERVALS.names, ("n", number, *known[number]), strict=True)) for number in sorted(changed)]
        self.windows.change(pa.Table.from_pylist(rows, schema=INTERVALS))

    def _written(self, table: str, found: dict[int, Any]) -> None:
        kept = self.tables[table]
        kept |= {window: merge_window(kept.get(window), rows) for window, rows in found.items()}

    def check(self) -> None:
        """Compare all that was ever written with everything there ever was."""
        popularity, latency = (
            pa.concat_tables([TABLES[name].schema.empty_table(), *tables.values()])
            for name, tables in self.tables.items()
        )
        columns = [popularity.column(name) for name in ("window_start", "subject", "publications", "subscribers")]
        rows = zip(columns[0].cast(pa.int64()).to_pylist(), *(each.to_pylist() for each in columns[1:]), strict=True)
        assert {(window, subject): tuple(numbers) for window, subject, *numbers in rows} == self.everything.popularity()
        assert popularity.num_rows == len(self.everything.counts)
        ordered = latency.sort_by([("window_start", "ascending"), ("subject", "ascending")])
        assert ordered.to_pylist() == self.everything.latency()


@given(played=st.lists(batches, max_size=12), small=st.sampled_from([0, 1, windows_module.SMALL]))
def test_the_tables_are_those_of_everything(played: list[Batch], small: int) -> None:
    """Whatever was forgotten, wherever it was restarted and in layers: every row is what all facts together say."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(windows_module, "SMALL", small)
        _play(played)


def _play(played: list[Batch]) -> None:
    stream = Played(MemoryStore())
    for number, batch in enumerate(played):
        stream.take(number, batch)
    stream.check()


@given(played=st.lists(batches, max_size=12))
def test_a_restart_remembers_what_was_remembered(played: list[Batch]) -> None:
    """And nothing else: neither what is final nor what was touched last."""
    stream = Played(MemoryStore())
    for number, batch in enumerate(played):
        stream.take(number, batch)
        again = Windows(stream.store, window_us=W, horizon_us=HORIZON_US)
        for name in (
            "applied",
            "size",
            "first_open",
            "latest",
            "_counts",
            "_tallied",
            "_intervals",
            "_nodes",
            "_final",
        ):
            assert getattr(again, name) == getattr(stream.windows, name), name


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_so_are_those_of_a_store_of_blobs(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The state may be put together, closed and opened after any batch."""
    monkeypatch.setattr(blob_store, "_LEAST_BYTES", 200)
    monkeypatch.setattr(blob_store, "_BLOB_BYTES", 100)
    random = Random(seed)
    blobs = MemoryBlobs()
    stream = Played(BlobStore(blobs))
    for number in range(60):
        stream.take(number, _drawn(random))
        if random.random() < 0.3:
            stream.store = BlobStore(blobs)
            stream.windows = stream._opened()
    stream.check()
    assert len(list(blobs.read())) < 60


def _drawn(random: Random) -> Batch:
    return Batch(
        passes=random.choice([0, 1, 5, 10, 20]),
        added=[(random.choice(["s1", "s2"]), random.choice([None, *SUBJECTS]))] * (random.random() < 0.4),
        ended=[random.randrange(4)] * (random.random() < 0.4),
        published=[(random.randrange(40), random.choice(SUBJECTS)) for _ in range(random.randrange(4))],
        decided=[(random.randrange(40), random.choice(SUBJECTS), random.choice([EXPIRED, 5])) for _ in range(3)],
        mark_ago=random.randrange(30),
        held_ago=random.randrange(60),
        is_restarted=False,
    )
