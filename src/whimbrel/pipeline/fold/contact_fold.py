"""Contacts of one node: reports of places, in order, become times that two devices were within range of each other.

Rule: a place holds until the next report of its device, or until it is stale; of two of one instant the later counts.
Rule: a contact has ended once time has passed its end. What is cut at the end of a slice of time goes on in the next.
Rule: it does not matter how time is sliced; a batch job slices it to spread the work, a stream with its batches.
Rule: two devices that were apart for more than ``MAX_APART_US`` meet anew: that gap does not count, so a stream may
forget the pair.
Rule: a log that was cut begins at a checkpoint, with the places that held there: a contact that was going on begins
there.
Rule: what a slice costs follows the devices that reported or went stale in it, and those near them. Two others are
together at its end if they were at its beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.hold.touched_rows import TouchedRows
from whimbrel.match.proximity.encounters import Positions, encounters
from whimbrel.match.proximity.ground import ball_m
from whimbrel.match.proximity.held_places import HeldPlaces, Seen
from whimbrel.model.bounds import INT64_MIN, real, whole
from whimbrel.model.near import DEFAULT_STALE_US, MAX_NEAR_M, MAX_STALE_US
from whimbrel.model.proximity import Sighting
from whimbrel.model.tables import TIME_TYPE

__all__ = [
    "CONTACT",
    "CONTACT_KINDS",
    "MAX_APART_US",
    "RANGE_M",
    "ContactFold",
    "ContactPlan",
    "Meeting",
    "meetings_table",
    "slice_contacts",
]

RANGE_M = 50.0
MAX_APART_US = 30 * 86_400_000_000
"""The longest time apart that counts as one: 30 days."""
CONTACT = pa.schema(
    [
        ("device_low", pa.string()),
        ("device_high", pa.string()),
        ("began_at", TIME_TYPE),
        ("ended_at", TIME_TYPE),
        ("closest_m", pa.float64()),
    ]
)
Pair = tuple[str, str]
_SLICE, _POSITION, _CONTACT, _BEFORE = "contact slice", "contact position", "contact", "contact before"
CONTACT_KINDS = frozenset({_SLICE, _POSITION, _CONTACT, _BEFORE})
"""The kinds of rows in which a ``ContactFold`` is kept."""
_MOVED_OF = 4
"""Where more than one of so many devices moved, all are looked at: finding those that are near costs as much."""
_FEW = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactPlan:
    """What a contact is."""

    range_m: float = RANGE_M
    stale_us: int = DEFAULT_STALE_US

    def __post_init__(self) -> None:
        real("range_m", self.range_m, 0, MAX_NEAR_M)
        whole("stale_us", self.stale_us, 1, MAX_STALE_US)


class Meeting(NamedTuple):
    """What two devices' contacts add up to, in microseconds."""

    contacts: int = 0
    together: int = 0
    gaps: int = 0
    apart: int = 0
    apart_squared: int = 0
    cycles: int = 0
    """The gaps, each with the contact before it."""

    def plus(self, other: Meeting) -> Meeting:
        """Return both together."""
        return Meeting(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def slice_contacts(
    names: Sequence[str], device: Any, began: Any, ended: Any, places: Any, *, range_m: float, settled: int = 0
) -> Any:  # a pyarrow.Table of CONTACT
    """Return the contacts of positions that hold from *began* until *ended*; *device* is which of *names* each is.

    None begins before the first *settled* ones; contacts between these are left out.
    """
    order = np.argsort(np.array(names, object), kind="stable") if names else np.empty(0, np.int64)
    rank = np.empty(len(names), np.int64)
    rank[order] = np.arange(len(names))
    by_time = np.argsort(began, kind="stable")
    columns = (rank[device[by_time]], began[by_time], ended[by_time], places[by_time])
    found = encounters(Positions(*columns), range_m=range_m, settled=settled)
    sorted_names = pa.array([names[at] for at in order.tolist()], pa.string())
    pair = [sorted_names.take(pa.array(column, pa.int64())) for column in (found.low, found.high)]
    times = [pa.array(column, pa.int64()).cast(TIME_TYPE) for column in (found.began, found.ended)]
    return pa.table([*pair, *times, pa.array(found.closest_m, pa.float64())], schema=CONTACT)


class _Open(NamedTuple):
    """A contact that touched the end of the last slice."""

    began: int
    closest_m: float


class ContactFold:
    """The contacts of one node, as far as its time was sliced."""

    def __init__(self, plan: ContactPlan) -> None:
        self._plan = plan
        self.until = INT64_MIN
        """The end of the last slice."""
        self._held = HeldPlaces(reach_m=ball_m(plan.range_m), stale_us=plan.stale_us)
        """The places that held there."""
        self.open: dict[Pair, _Open] = {}
        self._pairs: dict[str, set[Pair]] = {}
        """By device, those of ``open``."""
        self.last: dict[Pair, tuple[int, int]] = {}
        """Of pairs that have met: when their last contact ended, and how long it was."""
        self._ends: list[tuple[int, Pair]] = []
        """A heap of when these contacts ended, and of some that are not the last any more."""
        self._left: set[str] = set()
        """Devices whose place held until there and no longer."""
        self._is_whole = False
        """Whether ``open`` has all pairs that were together there: a checkpoint has the places only."""
        self._reported: list[tuple[Any, Any, Any]] = []
        """Reports of later times: devices, times and places."""
        self.waiting = 0
        self.touched = TouchedRows(
            {
                _SLICE: lambda: [self.until, self._told()],
                _POSITION: lambda device: _listed(self._held.places.get(device)),
                _CONTACT: lambda *pair: _listed(self.open.get(pair)),
                _BEFORE: lambda *pair: _listed(self.last.get(pair)),
            }
        )
        """The rows that have changed since the owner cleared this last."""
        self.touched.touch((_SLICE,))

    @property
    def positions(self) -> Mapping[str, Seen]:
        """Of devices, when they reported it, latitude and longitude: those that held at the end of the last slice."""
        return self._held.places

    # -- the state ---------------------------------------------------------------------------------------------------

    def rows(self) -> dict[tuple[str, ...], Any]:
        """Return everything that must be kept, by key."""
        found: dict[tuple[str, ...], Any] = {(_SLICE,): [self.until, self._told()]}
        found |= {(_POSITION, device): list(seen) for device, seen in self.positions.items()}
        found |= {(_CONTACT, *pair): list(begun) for pair, begun in self.open.items()}
        found |= {(_BEFORE, *pair): list(ended) for pair, ended in self.last.items()}
        return found

    def restore(self, key: Sequence[Any], value: Any) -> None:
        """Take over a row that was kept."""
        kind, *pair = key
        if kind == _SLICE:
            self.until, told = value
            if told:
                devices, times, places = zip(*told, strict=True)
                self._put(pa.array(devices), np.array(times, np.int64), np.array(places, np.float64))
        elif kind == _POSITION:
            self._held.places[pair[0]] = tuple(value)
        elif kind == _CONTACT:
            self._go_on((pair[0], pair[1]), _Open(*value))
        else:
            self._ended_last((pair[0], pair[1]), *value)

    def begin(self, at: int, places: Mapping[str, Sighting]) -> None:
        """Start at the time *at*, with devices at *places*: the log starts at a checkpoint."""
        self.until = at
        for device, (_, reported_at, place) in places.items():
            self._held.places[device] = (reported_at, place.latitude, place.longitude)
            self.touched.touch((_POSITION, device))

    def _told(self) -> list[Any]:
        devices, times, places = self._waiting()
        return list(zip(devices.to_pylist(), times.tolist(), places.tolist(), strict=True))

    def _put(self, devices: Any, times: Any, places: Any) -> None:
        self._reported.append((devices, times, places))
        self.waiting += len(devices)

    def _waiting(self) -> tuple[Any, Any, Any]:
        if not self._reported:
            return pa.array([], pa.string()), np.empty(0, np.int64), np.empty((0, 2))
        devices, times, places = zip(*self._reported, strict=True)
        return pa.concat_arrays(devices), np.concatenate(times), np.concatenate(places)

    # -- a slice -----------------------------------------------------------------------------------------------------

    def take(self, reports: Any) -> None:  # a pyarrow.Table, ordered by seq
        """Take in reports that follow the last ones."""
        rows = reports.filter(reports.column("place").is_valid()).combine_chunks()
        if rows.num_rows:
            places = [pc.struct_field(rows.column("place"), name).to_numpy() for name in ("latitude", "longitude")]
            times = rows.column("reported_at").cast(TIME_TYPE).cast(pa.int64()).to_numpy()
            device = rows.column("device").combine_chunks().cast(pa.string())
            self._put(device, times, np.stack(places, axis=1).astype(np.float64))
            self.touched.touch((_SLICE,))

    def advance(self, now: int) -> tuple[Any, dict[Pair, Meeting]]:
        """Let time have passed up to *now*; return the contacts that ended, and what they add to meetings."""
        if now <= self.until:
            return CONTACT.empty_table(), {}
        devices, times, places = self._waiting()
        is_past = times < now
        reported, where = devices.filter(pa.array(is_past)), places[is_past]
        beside, moved, is_all = self._looked_at(reported, where, now)
        held = [(name, *self._held.places[name]) for name in (*beside, *moved) if name in self._held.places]
        names = pa.concat_arrays([pa.array([each[0] for each in held], pa.string()), reported])
        coded = names.dictionary_encode()
        began = np.concatenate([np.array([each[1] for each in held], np.int64), times[is_past]])
        where = np.concatenate([np.array([each[2:] for each in held], np.float64).reshape(-1, 2), where])
        code = coded.indices.to_numpy().astype(np.int64)
        ended = self._ended(code, began)
        known = coded.dictionary.to_pylist()
        self._keep(known, code, now, (began, ended, where), settled=None if is_all else len(beside))
        self._reported, self.waiting = [], 0
        if not is_past.all():
            self._put(devices.filter(pa.array(~is_past)), times[~is_past], places[~is_past])
        begun, until = np.maximum(began, self.until), np.minimum(ended, now)
        held_then = begun < until
        columns = [column[held_then] for column in (code, begun, until, where)]
        settled = int(held_then[: len(beside)].sum())
        found = slice_contacts(known, *columns, range_m=self._plan.range_m, settled=settled)
        over = self._over(found, now, None if is_all else moved)
        self.until, self._is_whole = now, True
        self.touched.touch((_SLICE,))
        met = self._met(over)
        self._forget(now - MAX_APART_US)
        return over, met

    def _looked_at(self, reported: Any, where: Any, now: int) -> tuple[list[str], list[str], bool]:
        """Return the devices that stay where they are near others that do not, these others, and whether it is all."""
        held, names = self._held.places, reported.unique()
        if self._is_whole and _MOVED_OF * len(names) <= len(held):
            self._held.index(self.until)
            moved = {*names.to_pylist(), *self._held.take_due(now), *self._left}
            if _MOVED_OF * len(moved) <= len(held):
                before = np.array([held[name][1:] for name in moved if name in held], np.float64).reshape(-1, 2)
                return sorted(self._held.around(np.concatenate([before, where])) - moved), sorted(moved), False
        return [], list(held), True

    def _ended(self, code: Any, began: Any) -> Any:
        """Return until when positions hold, which are in order: until the device's next, or until they are stale."""
        order = np.argsort(code, kind="stable")
        ended = began + self._plan.stale_us
        same = code[order][1:] == code[order][:-1]
        before, after = order[:-1][same], order[1:][same]
        ended[before] = np.minimum(ended[before], began[after])
        return ended

    def _keep(
        self, names: Sequence[str], code: Any, now: int, positions: tuple[Any, Any, Any], *, settled: int | None
    ) -> None:
        """Keep the positions that hold at the end of the slice.

        The first *settled* devices stay where they are, as do all that are not named; None: these are all devices.
        """
        began, ended, where = positions
        last = np.full(len(names), -1, np.int64)
        last[code] = np.arange(code.size)  # of several the last one stays
        holds = ended[last] > now
        if settled is None:
            kept = zip(
                np.flatnonzero(holds).tolist(), began[last[holds]].tolist(), where[last[holds]].tolist(), strict=True
            )
            changed = self._held.replace({names[at]: (since, *place) for at, since, place in kept})
        else:
            holds[:settled] = False
            kept_names = [names[at] for at in np.flatnonzero(holds).tolist()]
            changed = self._held.keep(kept_names, began[last[holds]], where[last[holds]], now=now)
            holds[:settled] = True
        self._left = {names[at] for at in np.flatnonzero(~holds).tolist()}
        for device in (*changed, *filter(self._held.drop, self._left)):
            self.touched.touch((_POSITION, device))

    def _over(self, found: Any, now: int, moved: Iterable[str] | None) -> Any:
        """Return the contacts that have ended, joined with those that *moved*, or all, had when the slice began."""
        pairs = list(zip(found.column("device_low").to_pylist(), found.column("device_high").to_pylist(), strict=True))
        began, ended = (found.column(name).cast(pa.int64()).to_numpy().copy() for name in ("began_at", "ended_at"))
        closest = found.column("closest_m").to_numpy().copy()
        if moved is None:
            before = dict(self.open)
        else:
            before = {pair: self.open[pair] for device in moved for pair in self._pairs.get(device, ())}
        stopped = set(before)
        for at in np.flatnonzero(began == self.until).tolist():
            goes_on = before.pop(pairs[at], None)
            if goes_on is not None:
                began[at], closest[at] = goes_on.began, min(goes_on.closest_m, closest[at])
        for at in np.flatnonzero(ended == now).tolist():
            contact = _Open(int(began[at]), float(closest[at]))
            if self.open.get(pairs[at]) != contact:
                self._go_on(pairs[at], contact)
                self.touched.touch((_CONTACT, *pairs[at]))
            stopped.discard(pairs[at])
        for pair in stopped:
            self._stop(pair)
            self.touched.touch((_CONTACT, *pair))
        rows = [(*pair, each.began, self.until, each.closest_m) for pair, each in sorted(before.items())]
        rows += [
            (*pairs[at], int(began[at]), int(ended[at]), float(closest[at]))
            for at in np.flatnonzero(ended < now).tolist()
        ]
        columns = list(zip(*rows, strict=True)) or [()] * len(CONTACT)
        return pa.table([pa.array(column, f.type) for column, f in zip(columns, CONTACT, strict=True)], schema=CONTACT)

    def _go_on(self, pair: Pair, contact: _Open) -> None:
        self.open[pair] = contact
        for device in pair:
            self._pairs.setdefault(device, set()).add(pair)

    def _stop(self, pair: Pair) -> None:
        del self.open[pair]
        for device in pair:
            self._pairs[device].discard(pair)
            if not self._pairs[device]:
                del self._pairs[device]

    def _ended_last(self, pair: Pair, ended: int, length: int) -> None:
        self.last[pair] = (ended, length)
        heappush(self._ends, (ended, pair))

    def _forget(self, long_ago: int) -> None:
        """Forget the last contacts that ended before, but of pairs that are together: they get another one."""
        while self._ends and self._ends[0][0] < long_ago:
            ended, pair = heappop(self._ends)
            if pair in self.last and self.last[pair][0] == ended and pair not in self.open:
                del self.last[pair]
                self.touched.touch((_BEFORE, *pair))
        if len(self._ends) > 2 * len(self.last) + _FEW:
            self._ends = [(ended, pair) for pair, (ended, _) in self.last.items()]
            heapify(self._ends)

    def _met(self, over: Any) -> dict[Pair, Meeting]:
        """Return what contacts that ended add to meetings."""
        found: dict[Pair, Meeting] = {}
        times = (over.column(name).cast(pa.int64()).to_pylist() for name in ("began_at", "ended_at"))
        pairs = (over.column(name).to_pylist() for name in ("device_low", "device_high"))
        for low, high, began, ended in sorted(zip(*pairs, *times, strict=True)):
            pair, length = (low, high), ended - began
            added, before = Meeting(1, length), self.last.get(pair)
            if before is not None and (gap := began - before[0]) <= MAX_APART_US:
                added = Meeting(1, length, 1, gap, gap * gap, gap + before[1])
            found[pair] = found.get(pair, Meeting()).plus(added)
            self._ended_last(pair, ended, length)
            self.touched.touch((_BEFORE, *pair))
        return found


def _listed(row: tuple[Any, ...] | None) -> list[Any] | None:
    return None if row is None else list(row)


def meetings_table(sums: Mapping[Pair, Meeting], schema: Any) -> Any:  # a pyarrow.Table
    """Return rows of ``meetings``: one for each pair, and one for all of them together."""
    total = Meeting()
    for each in sums.values():
        total = total.plus(each)
    told = [((None, None), total)] if sums else []
    rows = [_row(pair, each) for pair, each in [*told, *sorted(sums.items())]]
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table([pa.array(column, f.type) for column, f in zip(columns, schema, strict=True)], schema=schema)


def _row(pair: tuple[str | None, str | None], sums: Meeting) -> tuple[Any, ...]:
    mean_apart = sums.apart / sums.gaps if sums.gaps else None
    waits = sums.apart_squared / 2 / sums.cycles if sums.cycles else None
    return (*pair, sums.contacts, sums.together / sums.contacts, mean_apart, waits)
