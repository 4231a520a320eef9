"""Energy of a Bluetooth radio of 2004: times in states and packets (``Usage``), times power; each input has a source.

A radio that does nothing draws its idle power, and each state adds to that. Scans add the receiver for one window of
each interval. Inquiries and pages add the power that a maker measured for them. A parked slave adds the receiver at
each beacon, and packets add the transmitter or the receiver while they last. The power class decides the transmitter's
power.

Rule: a value without a source is marked as an assumption; the lab varies the assumptions.
Rule: the energy is that of the radio alone: without processor, display, and the controller, which runs on mains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import real

__all__ = ["INPUTS", "Energy", "Input", "Power", "PowerClass", "compute_energy", "make_power"]

_TDK = "TDK Systems, Bluetooth Serial Module AT Command Set, XRBLU020-001SW-0 issue 1.9, 3 February 2003, page 27"
_BLU2I = "TDK Systems, blu2i Module User Guide, 2004, 5.4"
_SOCKET = "Socket Communications, Bluetooth Raw Serial Module, 6410-00195 A revision 0.7, April 2003"
_STANDARD = "Bluetooth baseband specification 1.2"


@dataclass(frozen=True, slots=True)
class Input:
    """One input of the model: a number with its unit and source."""

    value: float
    unit: str
    source: str

    @property
    def is_assumed(self) -> bool:
        """Whether the value is assumed, without a measurement."""
        return self.source.startswith("assumed")


INPUTS: Mapping[str, Input] = {
    "supply_v": Input(3.6, "V", f"{_TDK}: the lower of its two supply voltages"),
    "idle_ma": Input(1.6, "mA", f"{_TDK}: idle mode, 9,600 baud"),
    "receive_ma": Input(59.0, "mA", f"{_TDK}: discoverable, inquiry and page windows without a pause between them"),
    "inquire_ma": Input(50.0, "mA", f"{_TDK}: inquiring mode"),
    "page_ma": Input(50.0, "mA", f"{_TDK}: connecting mode"),
    "master_ma": Input(6.0, "mA", f"{_TDK}: connected, no data; and {_BLU2I}: a master"),
    "slave_ma": Input(31.0, "mA", f"{_BLU2I}: a slave without data keeps its receiver on in most slots"),
    "transmit_class_3_ma": Input(60.0, "mA", f"{_SOCKET}, Table 5: TX burst at 0 dBm, 1 mW"),
    "transmit_class_2_ma": Input(70.0, "mA", f"{_SOCKET}, Table 5: TX burst at +4 dBm, 2.5 mW"),
    "amplifier_ma": Input(
        93.0, "mA", "assumed: class 1 sends 100 mW through an amplifier of 30 % efficiency, on top of class 3"
    ),
    "beacon_ms": Input(1.25, "ms", "assumed: the receiver of a parked slave is on for two slots at each beacon"),
    "beacon_interval_ms": Input(640.0, "ms", "ours (radio/simulated/air.py); the thesis gives none"),
    "window_ms": Input(11.25, "ms", f"{_STANDARD}: a scan window"),
    "interval_ms": Input(1_280.0, "ms", f"{_STANDARD}: R1, the scan interval"),
    "id_ms": Input(0.068, "ms", f"{_STANDARD}: an ID packet, 68 bits"),
    "ids_per_s": Input(1_600.0, "1/s", f"{_STANDARD}: two IDs in each even slot of an inquiry or page"),
    "fhs_ms": Input(0.366, "ms", f"{_STANDARD}: an FHS packet, 366 bits"),
    "packet_ms": Input(2.871, "ms", f"{_STANDARD}: a DH5 packet of 339 bytes, 2,871 bits"),
}
"""Inputs of the model, by name: value, unit, source. The docs page and the lab's reports print this table."""


class PowerClass(Enum):
    """Power class: the strength of the transmitter."""

    CLASS_1 = "class 1, 100 mW"
    CLASS_2 = "class 2, 2.5 mW"
    CLASS_3 = "class 3, 1 mW"


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Milliwatts beyond idle, for each state of a radio; and millijoules for each packet."""

    idle_mw: float
    states_mw: Mapping[str, float] = field(default_factory=dict)
    """Milliwatts by the name of the state in ``Usage``."""
    answer_mj: float
    sent_packet_mj: float
    received_packet_mj: float


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules beyond idle, by state and kind of packet."""

    parts_j: Mapping[str, float]

    @property
    def total_j(self) -> float:
        """Sum of all parts, in joules."""
        return sum(self.parts_j.values())


def make_power(power_class: PowerClass = PowerClass.CLASS_2, **changed: float) -> Power:
    """Compute the powers from ``INPUTS``, with the values in *changed* in place of those of the same name."""
    for name, given in changed.items():
        if name not in INPUTS:
            raise InvalidValueError("input", name, ", ".join(INPUTS))
        real(name, given, 0, 1e6)
    value = {name: each.value for name, each in INPUTS.items()} | changed
    supply_v, idle_ma = value["supply_v"], value["idle_ma"]
    transmit_ma = {
        PowerClass.CLASS_1: value["transmit_class_3_ma"] + value["amplifier_ma"],
        PowerClass.CLASS_2: value["transmit_class_2_ma"],
        PowerClass.CLASS_3: value["transmit_class_3_ma"],
    }[power_class]
    # The measured powers of inquiries and pages are of class 2; a stronger transmitter adds for the IDs only.
    extra_ma = (transmit_ma - value["transmit_class_2_ma"]) * value["ids_per_s"] * value["id_ms"] / 1_000
    receive_mw = (value["receive_ma"] - idle_ma) * supply_v
    scan_mw = receive_mw * value["window_ms"] / value["interval_ms"]
    return Power(
        idle_mw=idle_ma * supply_v,
        states_mw={
            "inquiry": (value["inquire_ma"] - idle_ma + extra_ma) * supply_v,
            "page": (value["page_ma"] - idle_ma + extra_ma) * supply_v,
            "inquiry scan": scan_mw,
            "page scan": scan_mw,
            "active master": (value["master_ma"] - idle_ma) * supply_v,
            "active slave": (value["slave_ma"] - idle_ma) * supply_v,
            "parked": receive_mw * value["beacon_ms"] / value["beacon_interval_ms"],
        },
        answer_mj=transmit_ma * supply_v * value["fhs_ms"] / 1_000,
        sent_packet_mj=transmit_ma * supply_v * value["packet_ms"] / 1_000,
        received_packet_mj=receive_mw * value["packet_ms"] / 1_000,
    )


def compute_energy(usage: Mapping[str, float], power: Power) -> Energy:
    """Return the energy beyond idle of *usage*: seconds by state, and counts of answers and packets."""
    parts = {state: usage.get(state, 0.0) * mw / 1_000 for state, mw in power.states_mw.items()}
    parts["answers"] = usage.get("answers", 0.0) * power.answer_mj / 1_000
    packets_mj = usage.get("sent_packets", 0.0) * power.sent_packet_mj
    packets_mj += usage.get("received_packets", 0.0) * power.received_packet_mj
    parts["packets"] = packets_mj / 1_000
    return Energy(parts)
