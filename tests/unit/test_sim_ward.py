"""The intensive care unit, its doctors' devices and their batteries: made up, but the same every time."""

from __future__ import annotations

import io
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path

import cbor2
import numpy as np
import pytest
from PIL import Image

from whimbrel.errors import InvalidValueError
from whimbrel.language.policies import Policy
from whimbrel.model.codecs import attributes_of
from whimbrel.model.device import Display
from whimbrel.sim.ward.battery_day import BatteryDay, Life, play
from whimbrel.sim.ward.day_policies import DayPolicy, policy_text
from whimbrel.sim.ward.electrocardiogram import HEIGHT_PX, WIDTH_PX, draw, leads
from whimbrel.sim.ward.energy import SOURCES, Battery, Energy
from whimbrel.sim.ward.intensive_care import IntensiveCareUnit

POLICIES = Path(__file__).parents[2] / "examples" / "policies"
QUICK = BatteryDay(per_minute=600, energy=Energy(capacity_wh=0.01), report_s=0.45, pictures=3)
"""A battery that is empty after some seconds."""


# -- what is published -------------------------------------------------------------------------------------------------


def test_an_electrocardiogram_beats_as_often_as_the_pulse_says() -> None:
    """A doctor who counts the peaks of a picture reads the pulse that stands beside it."""
    for pulse in (50, 75, 140):
        volts = leads(pulse, np.random.default_rng(1), seconds=20.0)
        lead = volts[int(np.abs(volts).max(axis=1).argmax())]
        is_peak = np.abs(lead) > 0.6 * np.abs(lead).max()
        beats = int((np.diff(is_peak.astype(int)) > 0).sum())
        assert beats * 3 == pytest.approx(pulse, abs=4)


def test_readings_are_maps_with_a_picture_of_a_hundred_kilobytes() -> None:
    """As the paper has it: 100 KB on average (6.3)."""
    unit = IntensiveCareUnit(patients=2, pictures=4)
    told = [cbor2.loads(body) for bodies in unit.bodies for body in bodies]
    assert [each["patientID"] for each in told] == ["p0"] * 4 + ["p1"] * 4
    assert all(30 <= each["pulse"] <= 200 for each in told)
    sizes = [len(each["ecg"]) for each in told]
    assert 95_000 <= sum(sizes) / len(sizes) <= 105_000
    assert len(set(sizes)) > 4
    with Image.open(io.BytesIO(told[0]["ecg"])) as picture:
        assert (picture.format, picture.size) == ("JPEG", (WIDTH_PX, HEIGHT_PX))
    assert attributes_of(unit.bodies[0][0])["pulse"] == told[0]["pulse"]


def test_the_same_seed_gives_the_same_unit() -> None:
    """And another seed another one."""
    units = [IntensiveCareUnit(patients=2, pictures=2, seed=seed) for seed in (3, 3, 4)]
    assert units[0].bodies == units[1].bodies != units[2].bodies
    rng = np.random.default_rng(1)
    assert draw(leads(70, rng), rng, width_px=160, height_px=120).startswith(b"\xff\xd8")


def test_readings_come_at_equal_distances_one_patient_after_the_other() -> None:
    """And the pictures of a patient come again when all were shown."""
    unit = IntensiveCareUnit(patients=2, pictures=2, per_minute=120)
    readings = list(islice(unit.readings(), 6))
    assert [(each.at_s, each.topic) for each in readings[:3]] == [(0.25, "icu/p0"), (0.75, "icu/p1"), (1.25, "icu/p0")]
    assert readings[4].body == readings[0].body != readings[2].body
    assert list(IntensiveCareUnit(per_minute=0).readings()) == []


def test_doctors_have_every_mixture_of_states_and_their_own_patients() -> None:
    """Full, medium and low batteries, good and bad links, three displays."""
    unit = IntensiveCareUnit(patients=20, doctors=18, own=3)
    assert len({(each.battery, each.link, each.display) for each in unit.staff}) == 18
    assert all(len(set(each.patients)) == 3 for each in unit.staff)
    assert {name for each in unit.staff for name in each.patients} == set(unit.names)
    with pytest.raises(InvalidValueError, match="own"):
        IntensiveCareUnit(patients=2, own=3)


# -- energy ------------------------------------------------------------------------------------------------------------


def test_every_constant_has_its_source() -> None:
    """A number without one is a number that somebody liked."""
    assert set(SOURCES) == {each.name for each in fields(Energy)}
    assert all(source.split(":")[0] in {"measured", "derived", "assumed"} for source in SOURCES.values())


def test_a_battery_is_used_up_by_what_is_told_of_it() -> None:
    """Each use is counted apart, and together they are all that is gone."""
    energy = Energy(capacity_wh=1.0, device_w=1.0, radio_w=1.0)
    battery = Battery(energy)
    battery.wait(900)
    assert battery.share == pytest.approx(0.5)
    assert battery.idle_left_s == pytest.approx(900)
    battery.receive(100_000)
    battery.draw(307_200, 76_800)
    battery.report(200)
    assert battery.left_j == pytest.approx(3_600 - sum(battery.used_j.values()))
    packets = 69
    radio_j = 100_000 * 0.42e-6 + packets * 330e-6 + 35 * (420e-6 + 40 * 1.9e-6)
    assert battery.used_j["radio"] == pytest.approx(radio_j)
    assert battery.used_j["pictures"] == pytest.approx((307_200 * 150 + 76_800 * 30) / 133e6 * 0.63)
    assert battery.used_j["reports"] == pytest.approx(420e-6 + 200 * 1.9e-6)
    with pytest.raises(InvalidValueError):
        Energy(capacity_wh=0)


# -- a day through the broker's core -----------------------------------------------------------------------------------


def played(day: BatteryDay, folder: Path) -> Life:
    """Let a day pass."""
    life = play(day, folder)
    assert life.is_empty
    return life


def test_the_policies_are_those_of_the_examples() -> None:
    """They lie beside the simulation, because examples are not installed."""
    names = {"STATELESS": "icu_stateless", "STATEFUL": "icu_members", "REMEMBERING": "icu_link_memory"}
    for policy, name in ((DayPolicy[each], name) for each, name in names.items()):
        text = policy_text(policy)
        assert text == (POLICIES / f"{name}.policy").read_text(encoding="utf-8")
        Policy(text)
    assert policy_text(DayPolicy.BLIND) is None


def test_a_device_that_is_sent_nothing_lasts_as_long_as_it_idles(tmp_path: Path) -> None:
    """But for its reports."""
    day = replace(QUICK, per_minute=0.0)
    life = played(day, tmp_path)
    idle_s = day.energy.capacity_wh * 3_600 / day.energy.idle_w
    assert 0.98 * idle_s < life.seconds < idle_s
    assert life.device.counts["reports"] == int(life.seconds / day.report_s) + 1


def test_what_a_device_is_sent_follows_its_battery(tmp_path: Path) -> None:
    """Stateless: everything to the end. Stateful: smaller with each quarter, and nothing but alarms in the last."""
    whole = Display(WIDTH_PX, HEIGHT_PX)
    lives = {
        policy: played(replace(QUICK, policy=policy, display=whole), tmp_path / policy.value) for policy in DayPolicy
    }
    bodies = {len(body) for body in QUICK.unit.bodies[0]}
    assert set(lives[DayPolicy.BLIND].device.sizes) == set(lives[DayPolicy.STATELESS].device.sizes) == bodies
    assert lives[DayPolicy.BLIND].transforms == lives[DayPolicy.STATELESS].transforms == 0
    stateful = lives[DayPolicy.STATEFUL]
    steps = [group[0] for group in _falling(stateful.device.sizes)]
    assert sorted(steps, reverse=True) == steps
    assert len(steps) == 3
    published = int(stateful.seconds * QUICK.per_minute / 60)
    assert 0 < stateful.device.counts["messages"] < 0.9 * published  # in the last quarter nothing for five minutes
    assert stateful.seconds > 1.05 * lives[DayPolicy.STATELESS].seconds


def _falling(sizes: list[int]) -> list[list[int]]:
    """Return runs of sizes that are alike: within a tenth of the run's first."""
    groups: list[list[int]] = []
    for size in sizes:
        if not groups or not 0.9 < size / groups[-1][0] < 1.1:
            groups.append([])
        groups[-1].append(size)
    return groups


def test_the_same_day_twice_is_the_same_to_the_last_byte(tmp_path: Path) -> None:
    """The clock is moved by hand."""
    first, second = (played(QUICK, tmp_path / name) for name in "ab")
    assert first.seconds == second.seconds
    assert first.device.sizes == second.device.sizes
    assert first.device.battery.used_j == second.device.battery.used_j


def test_a_report_that_is_due_with_a_message_comes_first() -> None:
    """The order is the same on any clock."""
    day = BatteryDay(per_minute=60, report_s=0.5, pictures=1)
    found = [(at_s, reading is None) for at_s, reading in islice(day.moments(), 5)]
    assert found == [(0.0, True), (0.5, True), (0.5, False), (1.0, True), (1.5, True)]
