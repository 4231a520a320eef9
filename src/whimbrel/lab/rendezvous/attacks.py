"""Attacks: a device's exposure and the attackers' success, with plain Bluetooth and with a controller (Huang, 2.1.4).

The thesis claims that its system *reduces the chances of anonymous attacks*. Here each attacker is near a device that
is available for ten minutes before its seeker arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from whimbrel.lab.confidence import Estimate, estimate
from whimbrel.lab.experiment import Experiment, Findings, Table
from whimbrel.lab.rendezvous.points import make_point
from whimbrel.lab.spark_sweep import Row
from whimbrel.sim.rendezvous import intruders
from whimbrel.sim.rendezvous.intruders import Attack
from whimbrel.sim.rendezvous.pairs import System

__all__ = ["attacks"]

_ANONYMOUS = (Attack.BLUEJACKING, Attack.BLUESNARFING, Attack.TRACKER)
_SEEDS = 12
_Case = tuple[Attack, System, bool, bool]
"""The attack, the system, whether the publication is restricted, whether the controller stands in for the device."""


def _cases() -> list[_Case]:
    cases = [(attack, system, False, False) for attack in _ANONYMOUS for system in System]
    cases += [
        (Attack.INSIDER, system, each, False) for system in (System.PARK, System.RELEASE) for each in (False, True)
    ]
    cases += [(Attack.IMPOSTOR, System.PLAIN, False, False)]
    return [*cases, *((Attack.IMPOSTOR, System.PARK, False, has_headset) for has_headset in (False, True))]


def attacks(*, is_quick: bool = False) -> Experiment:
    """Return the experiment; a quick one has few seeds."""
    seeds = 3 if is_quick else _SEEDS
    seconds = 120.0 if is_quick else 600.0
    points = [
        make_point(
            intruders.play_attack,
            attack=attack.value,
            system=system.value,
            is_restricted=is_restricted,
            has_headset=has_headset,
            seconds=seconds,
            seed=seed,
        )
        for attack, system, is_restricted, has_headset in _cases()
        for seed in range(seeds)
    ]
    points += [
        make_point(intruders.play_thief, is_address_forged=is_forged, seed=seed)
        for is_forged in (False, True)
        for seed in range(seeds)
    ]
    return Experiment(
        name="rendezvous-attacks",
        title="Huang, 2.1.4 and 5.1: attacks on a device that wants to be found",
        points=[],
        own=points,
        is_swept=True,
        find=partial(_find, seconds=seconds),
        plot=partial(_plot, seconds=seconds),
        assumptions={
            "seeds": seeds,
            "the device is available for, s": seconds,
            "bluejacking": "an inquiry of 10.24 s every 30 s, and a page of all that was heard",
            "bluesnarfing and impostor": "a page of 5.12 s every 30 s; the address is known from another day",
            "a tracker": "inquires all the time, or subscribes for everything every minute, beside three devices",
            "the one that seeks it": "ends an inquiry with the answer",
        },
    )


def _rows_of(rows: Sequence[Row], case: _Case) -> list[Row]:
    attack, system, is_restricted, has_headset = case
    return [
        row
        for row in rows
        if row["kind"] == "attack"
        and row["attack"] == attack.value
        and row["system"] == system.value
        and row["is_restricted"] is is_restricted
        and row["has_headset"] is has_headset
    ]


def _words(case: _Case) -> str:
    _, system, is_restricted, has_headset = case
    extra = (", to friends only" if is_restricted else "") + (", and a headset is configured" if has_headset else "")
    return system.value + extra


def _seconds(found: Sequence[Row], name: str) -> Estimate:
    return estimate([row[name] for row in found])


def _find(rows: Sequence[Row], *, seconds: float) -> Findings:
    lines = []
    for case in _cases():
        found = _rows_of(rows, case)
        lines.append(
            (
                case[0].value,
                _words(case),
                str(_seconds(found, "discoverable_s")),
                str(_seconds(found, "connectable_s")),
                f"{_seconds(found, 'attempts').mean:.0f}",
                str(_seconds(found, "reached")),
                str(_seconds(found, "seen")),
            )
        )
    heads = ("attack", "the device is", "discoverable, s", "connectable, s", "attempts", "connected to it", "saw it")
    tables = [Table(f"A device that is available for {seconds:,.0f} s", heads, lines), _thief_table(rows)]
    return Findings(tables=tables, claims=_claims(rows, seconds), notes=_notes(rows))


def _thief_table(rows: Sequence[Row]) -> Table:
    lines = []
    for is_forged in (False, True):
        found = _thefts(rows, is_forged=is_forged)
        faults = sorted({fault for row in found for fault in row["refused_proofs"]})
        lines.append(
            (
                "the friend's, forged" if is_forged else "its own",
                "admits" if all(row["thesis_admits"] for row in found) else "refuses",
                str(sum(row["introduced"] + row["listed"] for row in found)),
                ", ".join(faults),
            )
        )
    heads = ("address", "the check of 2.3 alone", "with the challenge: introduced or told of a device", "refused for")
    return Table("A thief with a copied group token", heads, lines)


def _thefts(rows: Sequence[Row], *, is_forged: bool) -> list[Row]:
    return [row for row in rows if row["kind"] == "thief" and row["is_address_forged"] is is_forged]


def _claims(rows: Sequence[Row], seconds: float) -> dict[str, bool]:
    def total(name: str, *case: object) -> float:
        return float(sum(row[name] for row in _rows_of(rows, case)))  # type: ignore[arg-type]  # as in _cases

    def most(name: str, *case: object) -> float:
        return float(max(row[name] for row in _rows_of(rows, case)))  # type: ignore[arg-type]  # see above

    published = (System.PARK, System.RELEASE)
    return {
        "plain: bluejacking, bluesnarfing and tracking succeed": all(
            total(name, attack, System.PLAIN, False, False) > 0
            for attack, name in zip(_ANONYMOUS, ("reached", "reached", "seen"), strict=True)
        ),
        "a published device is never discoverable, and bluejackers and trackers find nobody": all(
            total(name, attack, system, False, False) == 0
            for attack in _ANONYMOUS
            for system in published
            for name in ("discoverable_s", "seen")
        )
        and all(total("reached", Attack.BLUEJACKING, system, False, False) == 0 for system in published),
        "with park bluesnarfing by a known address succeeds in the moment of the match at most": most(
            "reached", Attack.BLUESNARFING, System.PARK, False, False
        )
        <= 1,
        "with park a device is connectable for less than 12 s": most(
            "connectable_s", Attack.BLUESNARFING, System.PARK, False, False
        )
        < 12,
        "without park it is connectable all the time, and bluesnarfing by a known address succeeds": total(
            "reached", Attack.BLUESNARFING, System.RELEASE, False, False
        )
        > 0
        and most("connectable_s", Attack.BLUESNARFING, System.RELEASE, False, False) > 0.9 * seconds,
        "a tracker that subscribes sees open publications, and none of friends": all(
            total("seen", Attack.INSIDER, system, False, False)
            > 0
            == total("seen", Attack.INSIDER, system, True, False)
            for system in published
        ),
        "an impostor of a headset wakes the phone that the controller stands in for again and again, and no other": min(
            row["reached"] for row in _rows_of(rows, (Attack.IMPOSTOR, System.PARK, False, True))
        )
        > 1
        >= most("reached", Attack.IMPOSTOR, System.PARK, False, False),
        "a copied token gets a thief nothing, from whatever address": all(
            row["introduced"] == row["listed"] == 0 for each in (False, True) for row in _thefts(rows, is_forged=each)
        ),
        "by the check of 2.3 alone a forged address would be admitted": all(
            row["thesis_admits"] for row in _thefts(rows, is_forged=True)
        ),
        "the one that seeks the device finds it through the controller beside bluejackers and trackers": all(
            row["is_met"]
            for attack in (Attack.BLUEJACKING, Attack.TRACKER, Attack.INSIDER)
            for row in rows
            if row["kind"] == "attack" and row["attack"] == attack.value and row["system"] != System.PLAIN.value
        ),
    }


def _notes(rows: Sequence[Row]) -> list[str]:
    found = _rows_of(rows, (Attack.IMPOSTOR, System.PARK, False, True))
    connectable = _seconds(found, "connectable_s")
    paged = [
        row
        for row in rows
        if row["kind"] == "attack"
        and row["attack"] in {Attack.BLUESNARFING.value, Attack.IMPOSTOR.value}
        and row["system"] != System.PLAIN.value
    ]
    lost = sum(not row["is_met"] for row in paged)
    return [
        f"an attacker that pages took the page of the match in {lost} of {len(paged)} runs; such a pair has to wait",
        "**what the controller adds to the attacks**: it tells any subscriber of open publications",
        f"and a phone that it stands in for is woken by whoever pages its address: {connectable} s connectable in all",
        "passive listening is not played: who follows a piconet hears addresses that pages and FHS packets carry",
    ]


def _plot(rows: Sequence[Row], figure: Any, *, seconds: float) -> None:  # noqa: ANN401 # matplotlib's own
    figure.set_size_inches(12, 6)
    left, right = figure.subplots(1, 2)
    cases = _cases()
    names = [f"{case[0].value}\n{_words(case)}" for case in cases]
    places = list(range(len(cases)))
    for offset, (name, word) in enumerate((("discoverable_s", "discoverable"), ("connectable_s", "connectable"))):
        found = [_seconds(_rows_of(rows, case), name) for case in cases]
        left.barh(
            [place + 0.4 * offset for place in places],
            [each.mean for each in found],
            height=0.38,
            xerr=[each.margin for each in found],
            label=word,
        )
    left.set_yticks([place + 0.2 for place in places], names, fontsize=5)
    left.set(xlabel=f"s of exposure in {seconds:,.0f} s and until the connection")
    left.invert_yaxis()
    left.legend(fontsize=7)
    for offset, (name, word) in enumerate((("reached", "connected to it"), ("seen", "saw its address"))):
        found = [_seconds(_rows_of(rows, case), name) for case in cases]
        right.barh(
            [place + 0.4 * offset for place in places],
            [each.mean for each in found],
            height=0.38,
            xerr=[each.margin for each in found],
            label=word,
        )
    right.set_yticks([place + 0.2 for place in places], [""] * len(places))
    right.set(xscale="symlog", xlabel="times that the attacker succeeded")
    right.invert_yaxis()
    right.legend(fontsize=7)
