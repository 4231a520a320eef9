"""Contacts against every pair looked at alone, and against the exact contacts of a simulated walk."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import combinations, pairwise
from random import Random
from typing import Any, NamedTuple

import cbor2
import numpy as np
import pyarrow as pa
import pytest

from whimbrel.hold.retention import DEFAULT_RETENTION
from whimbrel.hold.store.interface import Key, StoreUnavailableError
from whimbrel.hold.store.memory import MemoryStore
from whimbrel.match.proximity.encounters import Encounters, Positions, encounters
from whimbrel.model.place import Place, Plane, Point, distance_m
from whimbrel.model.proximity import Sighting
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.fold import contact_fold
from whimbrel.pipeline.fold.contact_fold import (
    CONTACT,
    CONTACT_KINDS,
    MAX_APART_US,
    ContactFold,
    ContactPlan,
    Meeting,
    meetings_table,
)
from whimbrel.pipeline.unit.node_share import NodeShare
from whimbrel.sim.contacts.crossings import contacts_of
from whimbrel.sim.contacts.statistics import contact_statistics
from whimbrel.sim.mobility.positions import ORIGIN
from whimbrel.sim.mobility.waypoint import RandomWaypoint

PLAN = ContactPlan(range_m=112.0, stale_us=20)
PLACES = [Place(52.52, 13.405), Place(52.521, 13.405), Place(52.5211, 13.405), Place(52.53, 13.405), Place(90.0, 1.0)]


EVERY_S = 1.0
OFF_S = EVERY_S * 1.01
"""A walk is on a plane, reports on the ellipsoid, whose metres differ by some parts in 100,000."""


class Report(NamedTuple):
    """A place that a device reported."""

    device: str
    at: int
    place: Place


def random_reports(random: Random, count: int) -> list[Report]:
    """Return reports of few devices, many of one instant."""
    now, found = 1_000_000, []
    for _ in range(count):
        now += random.choice((0, 0, 1, 5, 12))
        found.append(Report(f"d{random.randrange(5)}", now, random.choice(PLACES)))
    return found


def brute_force(reports: list[Report], plan: ContactPlan, end: int) -> list[tuple[Any, ...]]:
    """Return low, high, began, ended and closest, microsecond by microsecond of change, pair by pair."""
    held: dict[str, list[tuple[int, int, Place]]] = {}
    for device in sorted({each.device for each in reports}):
        own = [each for each in reports if each.device == device]
        for here, after in pairwise([*own, None]):
            assert here is not None
            until = min(here.at + plan.stale_us, end, *([] if after is None else [after.at]))
            if here.at < until:
                held.setdefault(device, []).append((here.at, until, here.place))
    found = []
    for low, high in combinations(sorted(held), 2):
        pieces = sorted(
            (max(a, c), min(b, d), distance_m(here, there))
            for a, b, here in held[low]
            for c, d, there in held[high]
            if max(a, c) < min(b, d) and distance_m(here, there) <= plan.range_m
        )
        merged: list[list[Any]] = []
        for began, ended, away in pieces:
            if merged and began <= merged[-1][1]:
                merged[-1][1:] = [max(merged[-1][1], ended), min(merged[-1][2], away)]
            else:
                merged.append([began, ended, away])
        found += [(low, high, *each) for each in merged]
    return found


def table_of(reports: Iterable[Report]) -> Any:
    """Return rows of ``reports``."""
    rows = [
        {
            "node": "n",
            "seq": seq,
            "reported_at": each.at,
            "device": each.device,
            "place": {"latitude": each.place.latitude, "longitude": each.place.longitude},
        }
        for seq, each in enumerate(reports)
    ]
    return pa.Table.from_pylist(rows, schema=TABLES["reports"].schema)


def rows_of(table: Any) -> list[tuple[Any, ...]]:
    """Return contacts with their times as numbers and distances as far as they are the same everywhere."""
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in table.columns]
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return sorted((*row[:-1], round(row[-1], 6)) for row in rows)


@pytest.mark.parametrize("apart_us", [MAX_APART_US, 40], ids=["as ever", "pairs are forgotten"])
@pytest.mark.parametrize("seed", range(30))
def test_contacts_are_those_of_every_pair_however_time_is_sliced(
    seed: int, apart_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports of one instant, places that go stale, restarts: the same contacts."""
    monkeypatch.setattr(contact_fold, "_MOVED_OF", seed % 3)
    monkeypatch.setattr(contact_fold, "MAX_APART_US", apart_us)
    random = Random(seed)
    reports = random_reports(random, 120)
    fold, taken, found, met = ContactFold(PLAN), 0, [CONTACT.empty_table()], dict[tuple[str, str], Meeting]()
    while taken < len(reports):
        count = random.randint(1, 40)
        part = reports[taken : taken + count]
        fold.take(table_of(part))
        taken += count
        over, added = fold.advance(part[-1].at)
        found.append(over)
        met |= {pair: met.get(pair, Meeting()).plus(each) for pair, each in added.items()}
        if random.random() < (0.5, 0.1)[seed % 2]:
            fold = restarted(fold, PLAN)
    end = reports[-1].at
    wanted = sorted((*each[:-1], round(each[-1], 6)) for each in brute_force(reports, PLAN, end))
    assert rows_of(pa.concat_tables(found)) == [each for each in wanted if each[3] < end]
    still = sorted((*pair, each.began, end, round(each.closest_m, 6)) for pair, each in fold.open.items())
    assert still == [each for each in wanted if each[3] == end]
    assert _sums(met) == _sums(_summed([each for each in wanted if each[3] < end], apart_us))
    assert all(pair in fold.open or then >= end - apart_us for pair, (then, _) in fold.last.items())


def _sums(met: dict[tuple[str, str], Meeting]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = meetings_table(met, TABLES["meetings"].schema).to_pylist()
    return rows


def _summed(contacts: list[tuple[Any, ...]], apart_us: int) -> dict[tuple[str, str], Meeting]:
    found: dict[tuple[str, str], Meeting] = {}
    for pair in {each[:2] for each in contacts}:
        own = [each for each in contacts if each[:2] == pair]
        gaps = [(after[2] - here[3], here[3] - here[2]) for here, after in pairwise(own)]
        gaps = [each for each in gaps if each[0] <= apart_us]
        lengths = sum(each[3] - each[2] for each in own)
        apart, squares = sum(gap for gap, _ in gaps), sum(gap * gap for gap, _ in gaps)
        found[pair] = Meeting(len(own), lengths, len(gaps), apart, squares, apart + sum(own for _, own in gaps))
    return found


def restarted(fold: ContactFold, plan: ContactPlan) -> ContactFold:
    """Return what is made of a fold's rows; as it cannot know who is together, it looks at all devices next."""
    made = ContactFold(plan)
    for key, row in fold.rows().items():
        made.restore(key, row)
    return made


@pytest.mark.parametrize("seed", range(15))
def test_looking_at_those_that_moved_is_looking_at_all(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fold looks at the devices that moved and those near them, the other at all: the same rows at each step."""
    monkeypatch.setattr(contact_fold, "MAX_APART_US", 60)
    monkeypatch.setattr(contact_fold, "_MOVED_OF", seed % 3)  # 0: however many moved
    random, now = Random(seed), 1_000_000
    plan = ContactPlan(range_m=random.choice((0.0, 112.0, 2_000.0)), stale_us=random.choice((1, 10, 25, 200)))
    places = {
        f"d{number:02}": Sighting(number, now + random.randint(-30, 30), random.choice(PLACES)) for number in range(12)
    }
    one = ContactFold(plan)
    one.begin(now, places)
    other = restarted(one, plan)
    looked: list[int] = []
    monkeypatch.setattr(contact_fold, "encounters", _counting(looked))
    for _ in range(50):
        now += random.choice((0, 1, 1, 3, 10, 40))
        count = random.choice((0, 0, 1, 1, 2, 6))
        reports = [
            Report(f"d{random.randrange(12):02}", now + random.randint(-12, 4), random.choice(PLACES))
            for _ in range(count)
        ]
        if reports:
            one.take(table_of(reports))
            other.take(table_of(reports))
        over, met = one.advance(now)
        wanted, wanted_met = other.advance(now)
        assert rows_of(over) == rows_of(wanted)
        assert met == wanted_met
        assert one.rows() == other.rows()
        other = restarted(other, plan)
    assert sum(looked[::2]) <= sum(looked[1::2])


def _counting(looked: list[int]) -> Callable[..., Encounters]:
    def counted(positions: Positions, **given: Any) -> Encounters:
        looked.append(int(positions.device.size))
        return encounters(positions, **given)

    return counted


class RecordingStore(MemoryStore):
    """A store that knows which keys the last commit named, and that refuses a commit if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False
        self.put: set[Key] = set()
        self.dropped: set[Key] = set()

    def commit(self, applied: int, put: Mapping[Key, bytes], drop: Collection[Key]) -> None:
        """Note the keys, then commit."""
        if self.is_full:
            raise StoreUnavailableError("memory", "no space left")
        self.put, self.dropped = set(put), set(drop)
        super().commit(applied, put, drop)


def node_state(store: MemoryStore, plan: ContactPlan) -> NodeShare:
    """Return what *store* has of a node."""
    return NodeShare("n", store, retention=DEFAULT_RETENTION, assume_receipts=True, contact=plan)


@pytest.mark.parametrize("apart_us", [MAX_APART_US, 40], ids=["as ever", "pairs are forgotten"])
@pytest.mark.parametrize("seed", range(8))
def test_a_store_has_every_row_of_contacts_after_each_commit(
    seed: int, apart_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only rows that changed are put and dropped; none may be forgotten, through restarts and refused commits."""
    monkeypatch.setattr(contact_fold, "MAX_APART_US", apart_us)
    random = Random(seed)
    reports, store, taken, number = random_reports(random, 150), RecordingStore(), 0, 0
    state = node_state(store, PLAN)
    while taken < len(reports):
        assert state.contacts is not None
        part = reports[taken : (taken := taken + random.randint(1, 12))]
        state.contacts.take(table_of(part))
        if random.random() < 0.8:
            state.contacts.advance(part[-1].at + random.choice((0, 0, 1, 15, 60)))
        number += 1
        if random.random() < 0.2:
            store.is_full = True
            with pytest.raises(StoreUnavailableError):
                state.commit(number)
            store.is_full = False
            continue
        state.commit(number)
        wanted = {key: cbor2.dumps(row) for key, row in state.contacts.rows().items()}
        assert {key: value for key, value in store.rows() if key[0] in CONTACT_KINDS} == wanted
        if random.random() < 0.3:
            state = node_state(store, PLAN)
            assert state.contacts is not None
            assert {key: cbor2.dumps(row) for key, row in state.contacts.rows().items()} == wanted


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_report_costs_what_it_changes(monkeypatch: pytest.MonkeyPatch, *, is_restarted: bool) -> None:
    """Of ten thousand devices that stay together, pair by pair, one reports: a few are looked at, a few rows put."""
    places = [Place(52.0 + number / 1_000, 13.0) for number in range(5_000)]
    reports = [Report(f"d{number:05}", 1_000, places[number // 2]) for number in range(10_000)]
    store, looked = RecordingStore(), list[int]()
    state = node_state(store, ContactPlan())
    monkeypatch.setattr(contact_fold, "encounters", _counting(looked))
    assert state.contacts is not None
    state.contacts.take(table_of(reports))
    state.contacts.advance(2_000)
    state.commit(1)
    assert len(state.contacts.open) == len(places)
    assert len(store.put) > len(reports) + len(places)
    always: set[Key] = {("now",), ("time",), ("contact slice",), ("log mark",)}
    if is_restarted:
        state = node_state(store, ContactPlan())
        assert state.contacts is not None
        state.contacts.advance(2_100)  # looks at all once
        state.commit(2)
        assert store.put <= always
    contacts = state.contacts
    assert contacts is not None
    looked.clear()
    contacts.take(table_of([Report("d00007", 2_500, places[3])]))
    contacts.advance(3_000)
    state.commit(3)
    assert store.put == always | {("contact position", "d00007")}
    assert store.dropped == set()
    contacts.take(table_of([Report("d00007", 3_500, places[-1])]))  # and leaves for another pair
    over, _ = contacts.advance(4_000)
    state.commit(4)
    assert over.num_rows == 1
    assert store.dropped == {("contact", "d00006", "d00007")}
    assert store.put == always | {
        *(("contact position", "d00007"), ("contact before", "d00006", "d00007")),
        *(("contact", "d00007", "d09998"), ("contact", "d00007", "d09999")),
    }
    contacts.advance(5_000)
    state.commit(5)
    assert store.put == always
    assert max(looked) < 20  # the neighbours of two places
    assert looked[-1] == 0


def test_a_crowd_is_found_whatever_room_there_was() -> None:
    """All in one place: every pair, from the moment that the second came."""
    count = 60
    numbers = np.arange(count)
    places = np.tile([52.52, 13.405], (count, 1))
    found = encounters(Positions(numbers, numbers, np.full(count, 1_000), places), range_m=0.0)
    assert found.low.size == count * (count - 1) // 2
    assert (found.began == found.high).all()


def _runs(contacts: Iterable[tuple[int, int, float, float]]) -> dict[tuple[int, int], list[tuple[float, float]]]:
    """Return the contacts of each pair, as one where less than a report is between them: it may be seen or not."""
    found: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for low, high, start, end in sorted(contacts):
        own = found.setdefault((low, high), [])
        if own and start - own[-1][1] <= EVERY_S:
            own[-1] = (own[-1][0], end)
        else:
            own.append((start, end))
    return found


def test_contacts_of_a_walk_are_a_report_off_at_most() -> None:
    """Reports each second know a contact's ends to the second, and its statistics within three per cent."""
    walks = RandomWaypoint(nodes=30, area_m=500.0, speed_m_s=2.0, pause_s=10.0).walks(3_600.0, seed=27)
    exact = contacts_of(walks, range_m=50.0)
    plane, times = Plane(ORIGIN), np.arange(3_601, dtype=np.float64)
    positions = walks.positions(times)
    fold = ContactFold(ContactPlan(range_m=50.0))
    ticks = [
        Report(f"{node:03}", int(now * 1e6), plane.place(Point(*positions[node, tick].tolist())))
        for tick, now in enumerate(times.tolist())
        for node in range(walks.nodes)
    ]
    fold.take(table_of(ticks))
    over, added = fold.advance(int(times[-1] * 1e6))
    seen = _runs((int(low), int(high), began / 1e6, ended / 1e6) for low, high, began, ended, _ in rows_of(over))
    for pair, runs in _runs((low, high, start, end) for start, end, low, high in exact.rows()).items():
        for start, end in runs:
            if end - start > EVERY_S and end < times[-1] - EVERY_S:  # shorter ones may fall between, others go on
                assert any(abs(a - start) <= OFF_S and abs(b - end) <= OFF_S for a, b in seen[pair]), (pair, start, end)
    wanted = contact_statistics(exact)
    (total,) = [row for row in _sums(added) if row["device_low"] is None]
    assert total["contacts"] == pytest.approx(wanted.contacts, rel=0.03)
    assert wanted.contact_mean_s is not None
    assert total["mean_contact_us"] / 1e6 == pytest.approx(wanted.contact_mean_s, rel=0.03)
    assert total["mean_apart_us"] / 1e6 == pytest.approx(wanted.intercontact_mean_s, rel=0.03)
    assert total["meeting_time_us"] / 1e6 == pytest.approx(wanted.meeting_time_s, rel=0.03)
