"""Contacts of one node: compute from position reports, in order, when two devices were within range of each other.

Time is processed in slices. A batch run slices it to spread the work; a stream has one slice per batch.
Rule: the slicing does not change the contacts. A contact that lasts beyond a slice continues in the next slice.
Rule: a reported position is valid until the device's next report, or until it is stale. Of two reports at the same time
the later
in the log counts.
Rule: a contact has ended once time has passed its end.
Rule: a gap between two contacts of more than ``MAX_APART_US`` is not counted. So a stream may forget the pair.
Rule: a log that was cut starts at a checkpoint, with the positions that were valid there. A contact that was under way
begins at that time.
Rule: the cost of a slice depends on the devices that reported or went stale in the slice, and on devices near them. Any
two other devices are in contact at the end of the slice if they were in contact at its beginning.
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
"""Longest time apart that counts as a gap between two contacts: 30 days, in microseconds."""
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
"""Kinds of the rows that store the state of a ``ContactFold``."""
_MOVED_OF = 4
"""If more than one in this many devices moved, search all devices: finding those near the moved ones costs more."""
_FEW = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactPlan:
    """Options of contacts: range in metres, and age at which a reported position is stale."""

    range_m: float = RANGE_M
    stale_us: int = DEFAULT_STALE_US

    def __post_init__(self) -> None:
        real("range_m", self.range_m, 0, MAX_NEAR_M)
        whole("stale_us", self.stale_us, 1, MAX_STALE_US)


class Meeting(NamedTuple):
    """Sums over the contacts of two devices, and over the gaps between them; times in microseconds."""

    contacts: int = 0
    together: int = 0
    gaps: int = 0
    apart: int = 0
    apart_squared: int = 0
    cycles: int = 0
    """Sum of all gaps, plus the length of the contact before each gap."""

    def plus(self, other: Meeting) -> Meeting:
        """Return the sums of this value and *other*, field by field."""
        return Meeting(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def slice_contacts(
    names: Sequence[str], device: Any, began: Any, ended: Any, places: Any, *, range_m: float, settled: int = 0
) -> Any:  # a pyarrow.Table of CONTACT
    """Return the contacts between positions that are valid from *began* until *ended*.

    *device* has the index in *names* of each position's device. The first *settled* positions begin no later than the
    other positions; contacts between two of these first positions are left out.
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
    """A contact that was under way at the end of the last slice."""

    began: int
    closest_m: float


class ContactFold:
    """State of the contacts of one node, up to the end of the last slice of time."""

    def __init__(self, plan: ContactPlan) -> None:
        self._plan = plan
        self.until = INT64_MIN
        """End of the last slice of time, in microseconds."""
        self._held = HeldPlaces(reach_m=ball_m(plan.range_m), stale_us=plan.stale_us)
        """Places that were valid at the end of the last slice."""
        self.open: dict[Pair, _Open] = {}
        self._pairs: dict[str, set[Pair]] = {}
        """Pairs of devices in contact (the keys of ``open``), per device."""
        self.last: dict[Pair, tuple[int, int]] = {}
        """End and length of the last contact, per pair of devices that have met."""
        self._ends: list[tuple[int, Pair]] = []
        """Heap of (end, pair) of the contacts in ``last``, and of some contacts that are no longer the last."""
        self._left: set[str] = set()
        """Devices whose place was no longer valid at the end of the last slice."""
        self._is_whole = False
        """Whether ``open`` has all pairs in contact at the end of the last slice; False after ``begin``."""
        self._reported: list[tuple[Any, Any, Any]] = []
        """Reports that wait for the next slice: devices, times and places."""
        self.waiting = 0
        self.touched = TouchedRows(
            {
                _SLICE: lambda: [self.until, self._waiting_rows()],
                _POSITION: lambda device: _as_list(self._held.places.get(device)),
                _CONTACT: lambda *pair: _as_list(self.open.get(pair)),
                _BEFORE: lambda *pair: _as_list(self.last.get(pair)),
            }
        )
        """Rows of the state that changed since the caller last cleared this set."""
        self.touched.touch((_SLICE,))

    @property
    def positions(self) -> Mapping[str, Seen]:
        """Time of report, latitude and longitude, per device with a valid place at the end of the last slice."""
        return self._held.places

    # -- the state ---------------------------------------------------------------------------------------------------

    def rows(self) -> dict[tuple[str, ...], Any]:
        """Return all rows of the state, as a dict by key."""
        found: dict[tuple[str, ...], Any] = {(_SLICE,): [self.until, self._waiting_rows()]}
        found |= {(_POSITION, device): list(seen) for device, seen in self.positions.items()}
        found |= {(_CONTACT, *pair): list(begun) for pair, begun in self.open.items()}
        found |= {(_BEFORE, *pair): list(ended) for pair, ended in self.last.items()}
        return found

    def restore(self, key: Sequence[Any], value: Any) -> None:
        """Restore one row of the state."""
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
        """Start at the time *at* of a checkpoint, with its *places* of devices, because the log before it was cut."""
        self.until = at
        for device, (_, reported_at, place) in places.items():
            self._held.places[device] = (reported_at, place.latitude, place.longitude)
            self.touched.touch((_POSITION, device))

    def _waiting_rows(self) -> list[Any]:
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
        """Store position *reports* for the next slice of time; they come after all earlier reports in the log."""
        rows = reports.filter(reports.column("place").is_valid()).combine_chunks()
        if rows.num_rows:
            places = [pc.struct_field(rows.column("place"), name).to_numpy() for name in ("latitude", "longitude")]
            times = rows.column("reported_at").cast(TIME_TYPE).cast(pa.int64()).to_numpy()
            device = rows.column("device").combine_chunks().cast(pa.string())
            self._put(device, times, np.stack(places, axis=1).astype(np.float64))
            self.touched.touch((_SLICE,))

    def advance(self, now: int) -> tuple[Any, dict[Pair, Meeting]]:
        """Process the slice of time up to *now*; return the ended contacts, and their sums (``Meeting``) per pair."""
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
        ended = self._ends_of(code, began)
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
        met = self._sum_contacts(over)
        self._forget(now - MAX_APART_US)
        return over, met

    def under_way(self) -> Any:  # a pyarrow.Table
        """Return the contacts that have not ended, as rows without an end."""
        rows = [(*pair, each.began, None, each.closest_m) for pair, each in sorted(self.open.items())]
        columns = list(zip(*rows, strict=True)) or [()] * len(CONTACT)
        return pa.table([pa.array(column, f.type) for column, f in zip(columns, CONTACT, strict=True)], schema=CONTACT)

    def _looked_at(self, reported: Any, where: Any, now: int) -> tuple[list[str], list[str], bool]:
        """Return the unmoved devices near moved ones, the moved devices, and whether the latter are all devices."""
        held, names = self._held.places, reported.unique()
        if self._is_whole and _MOVED_OF * len(names) <= len(held):
            self._held.index(self.until)
            moved = {*names.to_pylist(), *self._held.take_due(now), *self._left}
            if _MOVED_OF * len(moved) <= len(held):
                before = np.array([held[name][1:] for name in moved if name in held], np.float64).reshape(-1, 2)
                return sorted(self._held.around(np.concatenate([before, where])) - moved), sorted(moved), False
        return [], list(held), True

    def _ends_of(self, code: Any, began: Any) -> Any:
        """Return the end of each position, given in order: its device's next position, or when it is stale."""
        order = np.argsort(code, kind="stable")
        ended = began + self._plan.stale_us
        same = code[order][1:] == code[order][:-1]
        before, after = order[:-1][same], order[1:][same]
        ended[before] = np.minimum(ended[before], began[after])
        return ended

    def _keep(
        self, names: Sequence[str], code: Any, now: int, positions: tuple[Any, Any, Any], *, settled: int | None
    ) -> None:
        """Store the positions that are valid at the end of the slice, *now*.

        *names* are the devices with positions in the slice; the first *settled* of them have not moved. Devices that
        are not in *names* have not moved either. If *settled* is None, *names* has all devices.
        """
        began, ended, where = positions
        last = np.full(len(names), -1, np.int64)
        last[code] = np.arange(code.size)  # of several positions of a device the last one stays
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
        """Return the contacts that ended by *now*, and update ``open``, the contacts under way.

        A contact in *found* that was under way before keeps its first begin. *moved* has the devices whose open
        contacts may have ended; None: all devices.
        """
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
        """Forget last contacts that ended before *long_ago*, except of pairs that are in contact now."""
        while self._ends and self._ends[0][0] < long_ago:
            ended, pair = heappop(self._ends)
            if pair in self.last and self.last[pair][0] == ended and pair not in self.open:
                del self.last[pair]
                self.touched.touch((_BEFORE, *pair))
        if len(self._ends) > 2 * len(self.last) + _FEW:
            self._ends = [(ended, pair) for pair, (ended, _) in self.last.items()]
            heapify(self._ends)

    def _sum_contacts(self, over: Any) -> dict[Pair, Meeting]:
        """Return the sums (``Meeting``) of ended contacts per pair; record each contact as the last one of its pair."""
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


def _as_list(row: tuple[Any, ...] | None) -> list[Any] | None:
    return None if row is None else list(row)


def meetings_table(sums: Mapping[Pair, Meeting], schema: Any) -> Any:  # a pyarrow.Table
    """Return the rows of ``meetings``: one for each pair, and one for all pairs together."""
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
