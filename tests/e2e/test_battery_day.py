"""A battery's day over sockets in real time: the same bytes and messages as on the clock that is moved by hand."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess

from whimbrel.mqtt.codec import Decoder
from whimbrel.mqtt.packets import V5, Connack, Puback
from whimbrel.sim.ward.battery_day import BatteryDay, play
from whimbrel.sim.ward.bedside_monitor import Monitor, encode_reading
from whimbrel.sim.ward.day_policies import DayPolicy
from whimbrel.sim.ward.doctor import DoctorDevice
from whimbrel.sim.ward.energy import Battery, Energy

TIMEOUT_S = 60.0
"""How long an expected packet may take; only a failing test waits that long."""


class Wire:
    """One connection to the broker."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)

    def read(self) -> bytes:
        """Return what has come, at least a byte."""
        data = self.socket.recv(1 << 20)
        assert data, "the broker closed the connection"
        return data

    def let_read(self, device: DoctorDevice, messages: int) -> None:
        """Let *device* read until it is ready and has so many messages."""
        while not device.is_ready or device.counts["messages"] < messages:
            self.socket.sendall(device.receive(self.read()))

    def close(self) -> None:
        """Close it."""
        self.socket.close()


@pytest.mark.parametrize("policy", [DayPolicy.STATELESS, DayPolicy.STATEFUL])
def test_a_day_over_sockets_has_the_same_bytes_and_messages(tmp_path: Path, policy: DayPolicy) -> None:
    """The same device, once beside the broker's core and once at a broker in a process of its own, second by second."""
    day = BatteryDay(
        policy=policy, per_minute=480, energy=Energy(capacity_wh=0.0022), report_s=0.5, pictures=3
    )  # it is empty within four seconds
    by_hand = play(day, tmp_path / "by hand")
    assert by_hand.is_empty
    if policy is DayPolicy.STATEFUL:
        assert len(set(by_hand.device.sizes)) > 3  # all levels, and nothing at the end
        assert by_hand.transforms
    device, decoder = day.device(), Decoder(version=V5)
    with BrokerProcess(tmp_path / "broker") as broker:
        doctor, monitor = Wire(broker.port), Wire(broker.port)
        doctor.socket.sendall(device.begin())
        doctor.let_read(device, 0)
        monitor.socket.sendall(Monitor().begin())
        answers = decoder.receive(monitor.read())
        assert isinstance(answers[0], Connack)
        device.battery = Battery(day.energy)
        begun, before_s = time.monotonic(), 0.0
        for (at_s, reading), received in zip(day.moments(), by_hand.received, strict=False):
            device.battery.wait(at_s - before_s)
            before_s = at_s
            time.sleep(max(0.0, begun + at_s - time.monotonic()))  # in real time: that is what is tried
            if reading is None:
                doctor.socket.sendall(device.report())
            else:
                monitor.socket.sendall(encode_reading(reading, packet_id=1))
                while not (answers := decoder.receive(monitor.read())):
                    pass
                assert isinstance(answers[0], Puback)  # decided, in this order
            doctor.let_read(device, received)
        doctor.close()
        monitor.close()
    assert device.sizes == by_hand.device.sizes
    assert device.counts == by_hand.device.counts
    device.battery.wait(by_hand.seconds - before_s)
    assert device.battery.used_j == pytest.approx(by_hand.device.battery.used_j)
