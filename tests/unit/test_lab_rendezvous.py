"""Huang's controller in numbers, in small: every claim of the four labs, without Spark; and the energy model alone."""

from __future__ import annotations

import json
from functools import cache
from math import inf

import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.lab.experiment import Experiment, Findings
from whimbrel.lab.rendezvous.attacks import attacks
from whimbrel.lab.rendezvous.breaking_even import find_crossing
from whimbrel.lab.rendezvous.dumb import dumb
from whimbrel.lab.rendezvous.energy import energy
from whimbrel.lab.rendezvous.load import load
from whimbrel.lab.spark_sweep import Row
from whimbrel.rendezvous.energy import INPUTS, PowerClass, compute_energy, make_power
from whimbrel.rendezvous.radio.simulated.usage import RadioState, Usage
from whimbrel.sim.rendezvous.intruders import Attack, play_attack, play_thief
from whimbrel.sim.rendezvous.pairs import First, System, play_pair

SECOND = 1_000_000
LABS = {"energy": energy, "load": load, "attacks": attacks, "dumb": dumb}


@cache
def _played(name: str) -> tuple[Experiment, list[Row], Findings]:
    """Return the quick form of a lab, its rows and its findings: played once for all tests of this file."""
    experiment = LABS[name](is_quick=True)
    rows = [point.measure() for point in experiment.own]
    return experiment, rows, experiment.find(rows)


@pytest.mark.parametrize("name", ["load", "attacks", "dumb"])
def test_every_claim_of_a_lab_comes_out_in_its_quick_form(name: str) -> None:
    """Two queues, priorities, each attack, both orders of dumb devices: what the thesis says, and what it does not."""
    _, _, findings = _played(name)
    assert [claim for claim, is_so in findings.claims.items() if not is_so] == []


def test_the_claims_about_energy_that_a_quick_form_can_show_come_out() -> None:
    """Its longest gap is ten minutes; a break-even for whole inquiries may lie beyond."""
    _, _, findings = _played("energy")
    wrong = [claim for claim, is_so in findings.claims.items() if not is_so]
    assert [claim for claim in wrong if not claim.startswith("apart: with park")] == []


def test_the_caveat_of_the_thesis_is_reproduced_with_its_size() -> None:
    """5.1: dearer when both are present; the table has joules and the factor, for both kinds of inquiry."""
    _, _, findings = _played("energy")
    (table,) = [each for each in findings.tables if "caveat" in each.title]
    factors = {(lasts, system): float(factor) for lasts, system, *_, factor in table.rows}
    assert all(factors[lasts, System.PARK.value] > 1.3 for lasts in ("10.24 s", "until the answer"))
    assert len(factors) == 6


@pytest.mark.parametrize("name", LABS)
def test_the_same_seed_gives_the_same_rows(name: str) -> None:
    """But for the processor's time; a sample of each kind of point, played a second time."""
    experiment, rows, _ = _played(name)
    first_of_kind = {row["kind"]: number for number, row in reversed(list(enumerate(rows)))}
    for number in first_of_kind.values():
        again = experiment.own[number].measure()
        assert {**json.loads(json.dumps(again)), "core_s": 0} == {**json.loads(json.dumps(rows[number])), "core_s": 0}


def test_tables_of_the_same_rows_are_the_same_and_have_confidence_intervals() -> None:
    """What is printed depends on rows alone."""
    experiment, rows, findings = _played("attacks")
    assert experiment.find(list(rows)) == findings
    assert "±" in findings.tables[0].rows[0][2], "exposure in seconds has its interval"


@pytest.mark.parametrize(("name", "count"), [("energy", 2), ("load", 0), ("attacks", 0), ("dumb", 2)])
def test_plots_say_where_we_are_dearer(name: str, count: int) -> None:
    """In the titles of energy's; what is written to a file is the commands' test."""
    from matplotlib.figure import Figure

    experiment, rows, _ = _played(name)
    figure = Figure()
    experiment.plot(rows, figure)
    assert sum("DEARER" in axes.get_title() for axes in figure.axes) >= count
    assert all(axes.has_data() for axes in figure.axes)


# -- energy ------------------------------------------------------------------------------------------------------------


def test_every_input_has_a_unit_and_a_source() -> None:
    """An assumption says that it is one."""
    assert all(each.unit and len(each.source) > 10 for each in INPUTS.values())
    assert {name for name, each in INPUTS.items() if each.is_assumed} == {"amplifier_ma", "beacon_ms"}


def test_energy_is_time_times_power() -> None:
    """By hand: ten seconds of inquiry, an hour parked, a hundred answers."""
    power = make_power(PowerClass.CLASS_2)
    found = compute_energy({"inquiry": 10.0, "parked": 3_600.0, "answers": 100.0}, power)
    assert found.parts_j["inquiry"] == pytest.approx(10 * (50 - 1.6) * 3.6 / 1_000)
    assert found.parts_j["parked"] == pytest.approx(3_600 * (59 - 1.6) * 3.6 * 1.25 / 640 / 1_000)
    assert found.parts_j["answers"] == pytest.approx(100 * 70 * 3.6 * 0.366 / 1e6)
    assert found.total_j == pytest.approx(sum(found.parts_j.values()))


def test_a_stronger_class_costs_more_where_it_sends() -> None:
    """And nothing where it listens."""
    strong, weak = make_power(PowerClass.CLASS_1), make_power(PowerClass.CLASS_3)
    assert strong.states_mw["inquiry"] > weak.states_mw["inquiry"]
    assert strong.answer_mj > weak.answer_mj
    assert strong.states_mw["parked"] == weak.states_mw["parked"]


def test_an_input_that_is_not_known_is_refused() -> None:
    """A misspelt variation would vary nothing."""
    with pytest.raises(InvalidValueError, match="beacon_ms"):
        make_power(PowerClass.CLASS_2, beacon=3.0)


def test_a_radio_counts_each_state_for_itself() -> None:
    """Two at once are two; what was ended is not counted any more."""
    usage = Usage(0)
    usage.change(0, inquiry_scan=True, page_scan=True)
    usage.change(2 * SECOND, inquiry_scan=False)
    usage.advance(5 * SECOND)
    assert usage.seconds(RadioState.INQUIRY_SCAN) == 2
    assert usage.seconds(RadioState.PAGE_SCAN) == 5
    assert usage.seconds(RadioState.PARKED) == 0


@pytest.mark.parametrize("is_whole", [True, False])
def test_an_inquiry_lasts_10_24_s_or_ends_with_the_answer(*, is_whole: bool) -> None:
    """With plain Bluetooth and with a controller alike; the break-even depends on it."""
    for system in (System.PLAIN, System.PARK):
        row = play_pair(system=system.value, first=First.SOUGHT.value, gap_s=0, seed=4, is_whole=is_whole)
        seeker = row["seeker"]
        assert isinstance(seeker, dict)
        assert (seeker["inquiry"] >= 10.24) is is_whole


def test_a_crossing_is_where_the_mean_difference_falls_below_zero_for_good() -> None:
    """Between two places by interpolation; everywhere and nowhere are told apart."""
    by_place = {0.0: [2.0, 2.0], 10.0: [-2.0, -2.0], 20.0: [-3.0, -3.0]}
    assert find_crossing(list(by_place), lambda place: by_place[place]).at == 5
    assert find_crossing([0.0], lambda _: [-1.0, -1.0]).at == -inf
    assert find_crossing([0.0], lambda _: [1.0, 1.0]).at == inf
    assert find_crossing([0.0], lambda _: [1.0, 1.0]).describe("s") == "never"


# -- attacks -----------------------------------------------------------------------------------------------------------


def attacked(attack: Attack, system: System, **more: bool) -> dict[str, object]:
    """Return what came of an attack that goes on for two minutes."""
    return play_attack(attack=attack.value, system=system.value, seconds=120.0, seed=2, **more)


@pytest.mark.parametrize("system", [System.PARK, System.RELEASE])
def test_a_bluejacker_finds_nobody_who_has_published(system: System) -> None:
    """With plain Bluetooth it sends its message every half minute."""
    assert attacked(Attack.BLUEJACKING, System.PLAIN)["reached"]
    row = attacked(Attack.BLUEJACKING, system)
    assert row["reached"] == row["seen"] == row["discoverable_s"] == 0


def test_a_bluesnarfer_that_knows_the_address_is_stopped_by_park_and_not_without() -> None:
    """Exposure in seconds: all the time without park, a moment with it."""
    plain, park, release = (attacked(Attack.BLUESNARFING, each) for each in (System.PLAIN, System.PARK, System.RELEASE))
    assert plain["reached"]
    assert not park["reached"]
    assert release["reached"]
    assert float(str(park["connectable_s"])) < 12
    assert float(str(release["connectable_s"])) > 100


def test_a_tracker_that_inquires_logs_no_published_device() -> None:
    """It logs the plain one some hundred times in ten minutes."""
    assert attacked(Attack.TRACKER, System.PLAIN)["seen"]
    assert not attacked(Attack.TRACKER, System.PARK)["seen"]


def test_a_tracker_that_subscribes_sees_what_is_open_and_nothing_of_friends() -> None:
    """An open publication is for everybody: the controller tells whoever asks."""
    assert attacked(Attack.INSIDER, System.PARK)["seen"]
    assert not attacked(Attack.INSIDER, System.PARK, is_restricted=True)["seen"]


def test_an_impostor_wakes_a_phone_only_where_the_controller_stands_in_for_it() -> None:
    """The price of 5.4.4: who pages cannot be heard from a page."""
    assert not attacked(Attack.IMPOSTOR, System.PARK)["reached"]
    assert attacked(Attack.IMPOSTOR, System.PARK, has_headset=True)["reached"]


@pytest.mark.parametrize(("is_forged", "fault"), [(False, "wrong_address"), (True, "wrong_device")])
def test_a_thief_with_a_copied_token_is_refused_and_learns_nothing(*, is_forged: bool, fault: str) -> None:
    """The check of 2.3 alone would admit a forged address; the challenge does not."""
    row = play_thief(is_address_forged=is_forged, seed=1)
    assert row["introduced"] == row["listed"] == 0
    assert row["refused_proofs"] == {fault: 1}
    assert row["thesis_admits"] is is_forged
