"""The energy of a doctor's device: what drains its battery, and the source of each constant.

A device of the paper (an HP Jornada 540 with a wireless card) draws power all the time. It also uses energy for each
packet and byte that it receives or sends, and for each pixel that it decodes or shows. ``SOURCES`` names the origin of
every constant: *measured* by others, *derived* from measurements of others, or *assumed*. ``lab/icu_battery`` varies
the assumed ones; the capacity scales all times by the same factor, and changes no ratio.
Rule: the energy is a function of the received data and of time; there are no random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from whimbrel.model.bounds import real

__all__ = ["SOURCES", "Battery", "Energy"]

_SEGMENT_BYTES = 1_460
"""TCP payload of one Ethernet or 802.11 packet, in bytes."""
_ACK_BYTES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """The constants of the model; ``SOURCES`` names the origin of each."""

    capacity_wh: float = 5.0
    device_w: float = 0.62
    radio_w: float = 0.8
    receive_j_per_byte: float = 0.42e-6
    receive_j_per_packet: float = 330e-6
    send_j_per_byte: float = 1.9e-6
    send_j_per_packet: float = 420e-6
    busy_w: float = 0.63
    clock_hz: float = 133e6
    decode_cycles_per_pixel: float = 150.0
    show_cycles_per_pixel: float = 30.0

    def __post_init__(self) -> None:
        for each in fields(self):
            real(each.name, getattr(self, each.name), 0, 1e12)
        real("capacity_wh", self.capacity_wh, 1e-6, 1e6)
        real("clock_hz", self.clock_hz, 1, 1e12)

    @property
    def idle_w(self) -> float:
        """Power that the device draws when nothing arrives."""
        return self.device_w + self.radio_w

    def receiving_j(self, size: int) -> float:
        """Return the energy of receiving *size* bytes on a connection, including its acknowledgements."""
        packets = math.ceil(size / _SEGMENT_BYTES)
        acknowledging_j = math.ceil(packets / 2) * (self.send_j_per_packet + _ACK_BYTES * self.send_j_per_byte)
        return packets * self.receive_j_per_packet + size * self.receive_j_per_byte + acknowledging_j

    def sending_j(self, size: int) -> float:
        """Return the energy of sending *size* bytes."""
        packets = math.ceil(size / _SEGMENT_BYTES)
        return packets * self.send_j_per_packet + size * self.send_j_per_byte

    def drawing_j(self, decoded_px: int, shown_px: int) -> float:
        """Return the energy of decoding and showing a picture."""
        cycles = decoded_px * self.decode_cycles_per_pixel + shown_px * self.show_cycles_per_pixel
        return cycles / self.clock_hz * self.busy_w


SOURCES: Mapping[str, str] = {
    "capacity_wh": "assumed: a flat lithium-ion cell of 1.35 Ah at 3.7 V; scales all times alike",
    "device_w": "derived: HP, Jornada 520 and 540 Series, Managing Power: about eight hours in typical use; of 5 Wh",
    "radio_w": "measured: Feeney and Nilsson, INFOCOM 2001, a WaveLAN card that listens; as T. Kunz's model rounds it",
    "receive_j_per_byte": "measured: the same, point-to-point receive, as T. Kunz's energy model of 802.11 has it",
    "receive_j_per_packet": "measured: the same",
    "send_j_per_byte": "measured: the same, point-to-point send",
    "send_j_per_packet": "measured: the same; TCP acknowledges every second packet (RFC 1122, 4.2.3.2)",
    "busy_w": "derived: the page of HP: MP3 with the display off lasts four hours, 1.25 W, so this much beyond idle",
    "clock_hz": "measured: the SH3 of the Jornada 540 (the paper, 6.3)",
    "decode_cycles_per_pixel": "assumed: a baseline JPEG decoder in C on a core without vector instructions",
    "show_cycles_per_pixel": "assumed: scaling a pixel and writing it into the frame buffer",
}
"""Origin of each constant: measured, derived or assumed, and from which source."""


class Battery:
    """The charge of a device's battery, and the energy used so far by purpose."""

    def __init__(self, energy: Energy, *, share: float = 1.0) -> None:
        self.energy = energy
        self._full_j = energy.capacity_wh * 3_600
        self.left_j = self._full_j * real("share", share, 0, 1)
        self.used_j = {"idle": 0.0, "radio": 0.0, "pictures": 0.0, "reports": 0.0}

    @property
    def share(self) -> float:
        """Remaining charge, 0 to 1."""
        return max(0.0, self.left_j / self._full_j)

    @property
    def is_empty(self) -> bool:
        """Whether the battery is empty, and so the device off."""
        return self.left_j <= 0

    @property
    def idle_left_s(self) -> float:
        """Seconds for which the charge lasts if nothing arrives."""
        return max(0.0, self.left_j) / self.energy.idle_w

    def wait(self, seconds: float) -> None:
        """Use the energy of *seconds* without traffic."""
        self._use("idle", seconds * self.energy.idle_w)

    def receive(self, size: int) -> None:
        """Use the energy of receiving *size* bytes."""
        self._use("radio", self.energy.receiving_j(size))

    def draw(self, decoded_px: int, shown_px: int) -> None:
        """Use the energy of decoding and showing a picture."""
        self._use("pictures", self.energy.drawing_j(decoded_px, shown_px))

    def report(self, size: int) -> None:
        """Use the energy of sending a report of *size* bytes."""
        self._use("reports", self.energy.sending_j(size))

    def _use(self, what: str, energy_j: float) -> None:
        self.left_j -= energy_j
        self.used_j[what] += energy_j
