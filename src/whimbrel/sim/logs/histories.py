"""Histories: the sessions of a generated node, their devices and subscriptions, as facts with a seq.

Rule: histories are consistent by construction. A device joins only while it is connected, and leaves only a session
that it joined. A subscription is modified or removed only while it exists.
Rule: all facts of a node share its seqs, 1 to N without a gap. The facts made here get the seqs nearest to their times;
publications and reports (``generate``) get all the others.

The time of a fact is first a fraction of the log, 0 to 1. Facts are sorted by it, and by rank where one fact causes the
other. They then get strictly ascending seqs, and the seq determines the exact time (``Calendar``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.tables import AREA_TYPE, TABLES, TIME_TYPE
from whimbrel.sim.logs.draws import Draws, Flags, Integers, Reals
from whimbrel.sim.logs.worlds import Wish, World

__all__ = ["KINDS", "Calendar", "Crowd", "History", "crowd", "history", "table_of"]

ArrowTable: TypeAlias = Any
"""A ``pyarrow.Table``; pyarrow ships no types."""

KINDS = ("phone", "desk", "tablet", "watch")
"""Kinds of devices of a session, in the order in which people get them."""

_SIZES = np.array([1, 2, 2, 3, 4])
_HOUR_US = 3_600_000_000
_SHARE = 0.15
"""Largest part of a node's facts that is made here; the rest is traffic."""
_FACTS_A_CYCLE = 6
_MAX_INTERESTS = 4

# Where fractions are equal, causes come before effects.
_CREATED, _ADDED, _MODIFIED, _REMOVED, _CONNECTED, _JOINED, _ALSO_JOINED, _LEFT, _ALSO_LEFT, _DISCONNECTED = range(10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """Time of each seq of a node: seqs are denser in busy hours, and times never decrease."""

    start: int
    hours: int
    events: int
    rhythm: Sequence[float]
    draws: Draws

    def at(self, seq: Integers) -> Integers:
        """Return the time of each *seq* in microseconds."""
        # Hours get seqs by the rhythm. Hour bounds are whole microseconds, so that rounding cannot turn time back.
        busy = np.resize(np.asarray(self.rhythm, np.float64), self.hours)
        known = np.concatenate([[0.0], np.cumsum(busy) / busy.sum()])
        fraction = (seq - 1 + self.draws.of("time").uniform(seq)) / self.events
        hours_us = np.arange(self.hours + 1) * float(_HOUR_US)
        passed: Integers = np.interp(fraction, known, hours_us).astype(np.int64)
        return self.start + passed


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """The sessions and devices of a node."""

    sessions: Sequence[str]
    devices: Sequence[str]
    session: Integers
    """Session of each device."""
    second: Integers
    """The second session of a device that is in two sessions, else -1."""
    kind: Integers
    """Kind of each device, as an index of ``KINDS``."""
    created: Reals
    """Creation of each session, as a fraction of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The facts of a node except its traffic (publications and reports)."""

    tables: dict[str, ArrowTable]
    seq: Integers
    """Seqs of these facts, ascending."""
    connected: Integers
    """Seq of the connection, for each device and cycle; the device is present until *disconnected*."""
    disconnected: Integers

    def is_connected(self, device: Integers, seq: Integers) -> Flags:
        """Return whether each *device* was connected at each *seq*."""
        began, ended = self.connected[device], self.disconnected[device]
        return np.asarray(((began < seq[:, None]) & (seq[:, None] < ended)).any(axis=1))


def crowd(world: World, draws: Draws, devices: int, *, place: int, nodes: int) -> Crowd:
    """Make the sessions and devices of node *place* of *nodes*; a session has one to four of the *devices*."""
    sizes = _SIZES[draws.of("size").below(np.arange(devices), len(_SIZES))]
    ends = np.cumsum(sizes)
    count = int(np.searchsorted(ends, devices)) + 1
    session = np.repeat(np.arange(count), sizes[:count])[:devices]
    kind = np.arange(devices) - np.concatenate([[0], ends])[session]
    numbers = [place + nodes * number + 1 for number in range(count)]
    all_devices = np.arange(devices)
    other = draws.of("other").below(all_devices, count)
    is_in_two = draws.of("in two").chance(all_devices, 0.1) & (other != session)
    is_late = draws.of("late").chance(np.arange(count), 0.3)
    created = draws.of("created").uniform(np.arange(count)) * np.where(is_late, 0.5, 0.01)
    return Crowd(
        sessions=[f"{world.people}-{number}" for number in numbers],
        devices=[f"{KINDS[k]}-{numbers[s]}" for k, s in zip(kind.tolist(), session.tolist(), strict=True)],
        session=session,
        second=np.where(is_in_two, other, -1),
        kind=kind,
        created=created,
    )


@dataclass(slots=True)
class _Facts:
    """Facts before they have a seq, as arrays: fraction of the log, rank, and subject of the fact."""

    fractions: list[Reals]
    ranks: list[Integers]
    abouts: list[Integers]

    def add(self, rank: int, fraction: Reals, about: Integers) -> None:
        self.fractions.append(fraction)
        self.ranks.append(np.full(len(fraction), rank))
        self.abouts.append(about)


def history(world: World, people: Crowd, calendar: Calendar, *, node: str) -> History:
    """Make the facts of *node*; raise an error that names the least number of events if the log is too small."""
    draws, events = calendar.draws, calendar.events
    cycles = _cycles(people, calendar)
    facts = _Facts([], [], [])
    facts.add(_CREATED, people.created, np.arange(len(people.sessions)))
    wishes = _add_interests(facts, people, draws)
    _add_presence(facts, people, draws, cycles)
    fraction = np.concatenate(facts.fractions)
    rank, about = np.concatenate(facts.ranks), np.concatenate(facts.abouts)
    if len(fraction) > events // 2:
        allowed = f"at least {2 * len(fraction)} for {len(people.devices)} devices on a node"
        raise InvalidValueError(f"events of {node}", events, allowed)
    order = np.lexsort((rank, fraction))
    rank, about = rank[order], about[order]
    seq = _numbers(fraction[order], events)
    at = calendar.at(seq)
    tables = {}
    for name, ranks in _RANKS.items():
        rows = np.isin(rank, ranks)
        columns = _columns(name, world, people, _Chosen(rank[rows], about[rows], wishes, cycles, draws))
        stamps = {"node": [node] * int(rows.sum()), "seq": seq[rows], "changed_at": at[rows]}
        tables[name] = table_of(name, stamps | columns)
    connected, disconnected = _spells((len(people.devices), cycles), rank, about, seq)
    return History(tables=tables, seq=seq, connected=connected, disconnected=disconnected)


_RANKS = {
    "sessions": [_CREATED],
    "interests": [_ADDED, _MODIFIED, _REMOVED],
    "presence": [_CONNECTED, _JOINED, _ALSO_JOINED, _LEFT, _ALSO_LEFT, _DISCONNECTED],
}


class _Chosen(NamedTuple):
    """The facts of one table, and the other values that their columns depend on."""

    rank: Integers
    about: Integers
    """Index of a session, a subscription or a connection."""
    wishes: Integers
    """Session of each subscription."""
    cycles: int
    draws: Draws


def _columns(name: str, world: World, people: Crowd, chosen: _Chosen) -> dict[str, Any]:
    if name == "sessions":
        return _sessions(people, chosen)
    return _interests(world, people, chosen) if name == "interests" else _presence(people, chosen)


def table_of(name: str, columns: dict[str, Any]) -> ArrowTable:
    """Return *columns* as the table *name*; columns that are not given are null."""
    schema = TABLES[name].schema
    rows = len(columns["seq"])
    arrays = []
    for column in schema:
        found = columns.get(column.name)
        if found is None:
            arrays.append(pa.nulls(rows, column.type))
        elif isinstance(found, np.ndarray) and column.type == TIME_TYPE:
            arrays.append(pa.array(found, pa.int64()).cast(TIME_TYPE))
        elif isinstance(found, pa.Array):
            arrays.append(found.cast(column.type))
        else:
            arrays.append(pa.array(found, column.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _cycles(people: Crowd, calendar: Calendar) -> int:
    """Return how often a device connects: several times a day, as far as the log has room."""
    others = len(people.sessions) * (1 + 3 * _MAX_INTERESTS)
    room = int((calendar.events * _SHARE - others) // (_FACTS_A_CYCLE * len(people.devices)))
    return max(1, min(room, 1 + calendar.hours // 6))


def _numbers(fraction: Reals, events: int) -> Integers:
    """Return strictly ascending seqs from 1 to *events*: for each ascending *fraction* the nearest free seq."""
    places = np.arange(len(fraction))
    wanted = 1 + (fraction * events).astype(np.int64)
    rising = places + np.maximum.accumulate(wanted - places)
    return np.minimum(rising, events - places[::-1])


# -- interests -------------------------------------------------------------------------------------------------------


def _add_interests(facts: _Facts, people: Crowd, draws: Draws) -> Integers:
    """Add one to four subscriptions per session; return the session of each."""
    sessions = np.arange(len(people.sessions))
    wishes = np.repeat(sessions, 1 + draws.of("wishes").below(sessions, _MAX_INTERESTS))
    which = np.arange(len(wishes))
    born = people.created[wishes]
    added = born + (1 - born) * 0.4 * draws.of("added").uniform(which) ** 4  # most of them early
    modified = added + (1 - added) * (0.1 + 0.4 * draws.of("modified").uniform(which))
    removed = modified + (1 - modified) * (0.2 + 0.7 * draws.of("removed").uniform(which))
    is_modified = draws.of("is modified").chance(which, 0.3)
    is_removed = draws.of("is removed").chance(which, 0.25)
    facts.add(_ADDED, added, which)
    facts.add(_MODIFIED, modified[is_modified], which[is_modified])
    facts.add(_REMOVED, removed[is_removed], which[is_removed])
    return wishes


def _interests(world: World, people: Crowd, chosen: _Chosen) -> dict[str, Any]:
    rank, about, draws = chosen.rank, chosen.about, chosen.draws
    who = [draws.of("who", place).uniform(about).tolist() for place in range(2)]
    how = [draws.of("how", place).uniform(about * 3 + rank).tolist() for place in range(4)]
    asked = [
        world.wish(identity, parameters[:2], len(people.devices))
        for identity, parameters in zip(zip(*who, strict=True), zip(*how, strict=True), strict=True)
    ]
    removed = rank == _REMOVED
    has_ttl = draws.of("has ttl").chance(about, 0.6) & ~removed
    has_max = draws.of("has max").chance(about, 0.5) & ~removed
    ttl_us = 60_000_000 * (1 + (np.array(how[2]) * 24 * 60).astype(np.int64))
    limit = np.where(np.array(how[3]) < 0.1, 0, 1 + (np.array(how[3]) * 100).astype(np.int64))  # 0: live only
    gone = removed.tolist()
    names = np.array(["added", "modified", "removed"])
    return {
        "change": names[rank - _ADDED].tolist(),
        "session": pa.array(people.sessions).take(pa.array(chosen.wishes[about])),
        "subject_filter": [wish.subject_filter for wish in asked],
        "name": [f"wish-{number}" for number in about.tolist()],
        "filter_text": [None if is_gone else wish.filter_text for wish, is_gone in zip(asked, gone, strict=True)],
        "ttl_us": pa.array(ttl_us, mask=~has_ttl),
        "max_held": pa.array(limit, mask=~has_max),
        "near": pa.array(
            [None if is_gone else _near(wish) for wish, is_gone in zip(asked, gone, strict=True)], AREA_TYPE
        ),
        "keys": [[]] * len(asked),
        "accept_insecure": [True] * len(asked),
    }


def _near(wish: Wish) -> dict[str, float] | None:
    return None if wish.near is None else dict(zip(("latitude", "longitude", "radius_m"), wish.near, strict=True))


def _sessions(people: Crowd, chosen: _Chosen) -> dict[str, Any]:
    names = pa.array(people.sessions).take(pa.array(chosen.about))
    return {"change": ["created"] * len(names), "session": names}


# -- presence --------------------------------------------------------------------------------------------------------


def _add_presence(facts: _Facts, people: Crowd, draws: Draws, cycles: int) -> None:
    """Add the facts of *cycles* connections per device.

    A fact's ``about`` is device · cycles + cycle. One device in two is still connected at the end; one connection in
    five breaks without a DISCONNECT.
    """
    spells = np.arange(len(people.devices) * cycles)
    device, cycle = np.divmod(spells, cycles)
    born = people.created[people.session[device]]
    began = born + (1 - born) * (cycle + 0.05 + 0.3 * draws.of("began").uniform(spells)) / cycles
    ended = born + (1 - born) * (cycle + 0.55 + 0.4 * draws.of("ended").uniform(spells)) / cycles
    second = people.second[device]
    has_second = (second >= 0) & (people.created[second] < began) & draws.of("joins both").chance(spells, 0.8)
    stays = (cycle == cycles - 1) & draws.of("stays").chance(device, 0.5)
    is_clean = draws.of("clean").chance(spells, 0.8) & ~stays
    facts.add(_CONNECTED, began, spells)
    facts.add(_JOINED, began, spells)
    facts.add(_ALSO_JOINED, began[has_second], spells[has_second])
    facts.add(_LEFT, ended[is_clean], spells[is_clean])
    also = is_clean & has_second
    facts.add(_ALSO_LEFT, ended[also], spells[also])
    facts.add(_DISCONNECTED, ended[~stays], spells[~stays])


def _spells(shape: tuple[int, int], rank: Integers, about: Integers, seq: Integers) -> tuple[Integers, Integers]:
    """Return the seqs between which each device was connected, for each device and cycle."""
    connected, disconnected = np.empty(shape, np.int64).reshape(-1), np.full(shape, INT64_MAX).reshape(-1)
    connected[about[rank == _CONNECTED]] = seq[rank == _CONNECTED]
    disconnected[about[rank == _DISCONNECTED]] = seq[rank == _DISCONNECTED]
    return connected.reshape(shape), disconnected.reshape(shape)


def _presence(people: Crowd, chosen: _Chosen) -> dict[str, Any]:
    rank, about = chosen.rank, chosen.about
    device = about // chosen.cycles
    is_joined, is_left = np.isin(rank, [_JOINED, _ALSO_JOINED]), np.isin(rank, [_LEFT, _ALSO_LEFT])
    is_second = np.isin(rank, [_ALSO_JOINED, _ALSO_LEFT])
    session = np.where(is_second, people.second[device], people.session[device])
    takes = chosen.draws.of("takes").chance(about * 2 + is_second, 0.5).astype(np.int64)
    change = np.select([rank == _CONNECTED, is_joined, is_left], [0, 1, 2], 3)
    return {
        "device": pa.array(people.devices).take(pa.array(device)),
        "session": pa.array(people.sessions).take(pa.array(session, mask=~(is_joined | is_left))),
        "change": pa.array(["connected", "joined", "left", "disconnected"]).take(pa.array(change)),
        "receipt": pa.array(["keep", "take"]).take(pa.array(takes, mask=~is_joined)),
    }
