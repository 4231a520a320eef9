"""Doctors in one client process: they use real sockets, acknowledge everything, and record each arrival.

The process reads its job as one line of JSON, and reports that it is ready when the broker has answered every doctor.
It then answers each input line with one line: the number of messages so far, or all arrivals at the end. All processes
of a machine share its clock (CLOCK_MONOTONIC), so arrivals can be compared with publications.
Rule: bodies are not decoded, because the processor of a device is not measured here.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from whimbrel.model.device import Display
from whimbrel.mqtt.codec import Decoder, encode
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, Connack, Pingreq, Pingresp, Puback, Publish, Suback
from whimbrel.sim.ward.doctor import RefusedError, encode_opening, encode_report
from whimbrel.sim.ward.intensive_care import Doctor

__all__ = ["CrowdDoctor", "main"]

_READ_BYTES = 1 << 18
_AGAIN_S = 0.1
"""Seconds between two attempts to connect."""
_PATIENCE_S = 300.0
"""Timeout for the answers to all doctors, in seconds."""
_FIRST_REPORT = 4
"""Packet identifier of the first report, which is acknowledged, so that its variables are known to be set."""
_OF_POLICIES = "$whimbrel/"


class CrowdDoctor(NamedTuple):
    """One doctor of the crowd, and the doctor's policy."""

    doctor: Doctor
    policy: str | None
    reports: bool
    is_waited_for: bool = True
    """Whether a run waits for this doctor's last message; a throttled doctor may take minutes."""

    def as_json(self) -> dict[str, Any]:
        """Return the doctor as a JSON object."""
        return {
            **self.doctor._asdict(),
            "display": [self.doctor.display.width_px, self.doctor.display.height_px],
            "policy": self.policy,
            "reports": self.reports,
            "is_waited_for": self.is_waited_for,
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> CrowdDoctor:
        """Return the doctor from an object that ``as_json`` made."""
        values = {name: told[name] for name in Doctor._fields}
        values |= {"patients": tuple(told["patients"]), "display": Display(*told["display"])}
        return cls(Doctor(**values), told["policy"], told["reports"], told["is_waited_for"])


class _Connected:
    """A doctor with a socket, and the messages that arrived over all of its connections."""

    def __init__(self, who: CrowdDoctor, job: Mapping[str, Any]) -> None:
        self.who, self._job = who, job
        self.socket: socket.socket | None = None
        self.connect_at = 0.0
        self._decoder = Decoder(version=V5)
        self._answers_wanted = 0
        self._received_since_report = 0
        self.arrivals: list[tuple[int, float, int]] = []
        """Number, arrival time and size of each reading, including repetitions."""
        self.marked: list[int] = []
        """Numbers of the readings with the flag DUP."""
        self.notices: Counter[str] = Counter()
        """Number of messages about its policy, by the last level of their topic."""
        self.was_ready = False

    @property
    def is_ready(self) -> bool:
        return self.socket is not None and self._answers_wanted == 0

    def connect(self) -> bool:
        """Connect, and send CONNECT and what follows it; return False if nobody listens."""
        try:
            self.socket = socket.create_connection((self._job["host"], self._job["port"]), timeout=_PATIENCE_S)
        except ConnectionRefusedError:
            return False
        self._decoder = Decoder(version=V5)
        who, is_first = self.who, not self.was_ready
        policy = who.policy if is_first else None
        also = () if policy is None else (f"$whimbrel/policy/of-{who.doctor.name}/+",)
        expiry_s = self._job.get("expiry_s", 0)
        opening = encode_opening(
            who.doctor, policy, self._job["qos"], clean_start=is_first or not expiry_s, expiry_s=expiry_s, also=also
        )
        self._answers_wanted = 2 if policy is None else 4
        if who.reports:
            opening += self._report(_FIRST_REPORT)
            self._answers_wanted += 1
        self.socket.sendall(opening)
        return True

    def report(self) -> None:
        """Send a report, or a ping if the doctor sends no reports; do nothing if the doctor is not connected."""
        if self.is_ready:
            assert self.socket is not None
            self.socket.sendall(self._report() if self.who.reports else encode(Pingreq(), V5))

    def _report(self, packet_id: int = 0) -> bytes:
        doctor, received = self.who.doctor, self._received_since_report
        self._received_since_report = 0
        return encode_report(
            doctor, battery=doctor.battery, received=round(received * doctor.link), packet_id=packet_id
        )

    def receive(self, now_s: float) -> bool:
        """Read and acknowledge messages; return whether the connection is still open."""
        assert self.socket is not None
        try:
            data = self.socket.recv(_READ_BYTES)
            if not data:
                return False
            answers = b"".join(self._acknowledge(packet, now_s) for packet in self._decoder.receive(data))
            if answers:
                self.socket.sendall(answers)
        except (ConnectionResetError, BrokenPipeError):
            return False
        return True

    def _acknowledge(self, packet: object, now_s: float) -> bytes:
        if isinstance(packet, Publish):
            topic = packet.topic
            if topic.startswith(_OF_POLICIES):
                self.notices[topic.rsplit("/", 1)[1]] += 1
            else:
                self._received_since_report += 1
                number = int(topic.rsplit("/", 1)[1])
                self.arrivals.append((number, now_s, len(packet.payload)))
                if packet.dup:
                    self.marked.append(number)
            return encode(Puback(packet.packet_id), V5) if packet.qos else b""
        if isinstance(packet, Pingresp):
            return b""
        if isinstance(packet, Connack) and packet.code == ReasonCode.SERVER_UNAVAILABLE:
            raise ConnectionResetError("it is being restored")
        if not isinstance(packet, Connack | Puback | Suback):
            raise RefusedError(self.who.doctor.name, str(packet))
        codes = packet.codes if isinstance(packet, Suback) else (packet.code,)
        if any(int(code) >= 0x80 for code in codes):
            raise RefusedError(self.who.doctor.name, str(packet))
        self._answers_wanted -= 1
        self.was_ready = self.was_ready or not self._answers_wanted
        return b""

    def close(self) -> None:
        """Close the connection."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def as_json(self) -> dict[str, Any]:
        """Return all arrivals, as a JSON object."""
        return {"arrivals": self.arrivals, "marked": self.marked, "notices": dict(self.notices)}


class _Crowd:
    """All doctors of one process."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self._job = job
        self._doctors = [_Connected(CrowdDoctor.from_json(each), job) for each in job["doctors"]]
        self._selector = selectors.DefaultSelector()
        self._away = list(self._doctors)
        self._told = -1
        self.is_over = False

    def begin(self) -> None:
        """Connect every doctor and wait for the answers."""
        until_s = time.monotonic() + _PATIENCE_S
        for each in self._doctors:  # one by one: parsing a policy takes the broker milliseconds
            self._go_on()
            while not each.is_ready:
                if time.monotonic() > until_s:
                    raise RefusedError(each.who.doctor.name, "nothing")
                self._go_on()
        _say({"ready": len(self._doctors)})

    def run(self) -> None:
        """Receive, report and answer input lines until one asks for the end."""
        self._selector.register(sys.stdin, selectors.EVENT_READ, None)
        begun_s, report_s = time.monotonic(), float(self._job["report_s"])
        reports = count(1)
        due_s = begun_s + next(reports) * report_s
        while not self.is_over:
            if time.monotonic() >= due_s:
                for each in self._doctors:
                    each.report()
                due_s = begun_s + next(reports) * report_s
            self._go_on(max(0.0, due_s - time.monotonic()))
            if self._job["tells_progress"]:
                self._tell_progress()

    def _go_on(self, wait_s: float = 1.0) -> None:
        """Connect the doctors that are away, and handle readable sockets."""
        now_s = time.monotonic()
        for each in [each for each in self._away if each.connect_at <= now_s]:
            if each.connect():
                assert each.socket is not None
                self._selector.register(each.socket, selectors.EVENT_READ, each)
                self._away.remove(each)
            else:
                each.connect_at = now_s + _AGAIN_S
        for key, _ in self._selector.select(min(wait_s, _AGAIN_S if self._away else wait_s)):
            if key.data is None:
                self._answer(sys.stdin.readline())
                continue
            each = key.data
            if not each.receive(time.monotonic()):
                if not self._job.get("expiry_s"):
                    raise RefusedError(each.who.doctor.name, "the end of its connection")
                self._selector.unregister(each.socket)
                each.close()
                each.connect_at = time.monotonic() + _AGAIN_S
                self._away.append(each)

    def _answer(self, line: str) -> None:
        asked = json.loads(line) if line else {"end": True}
        if "count" in asked:
            count = sum(len(each.arrivals) for each in self._doctors if each.who.is_waited_for)
            _say({"count": count, "away": len(self._away)})
        else:
            self.is_over = True
            _say({"doctors": {each.who.doctor.name: each.as_json() for each in self._doctors}})

    def _tell_progress(self) -> None:
        """Report the number of readings that every doctor has received, if it has risen."""
        least = min(len(each.arrivals) for each in self._doctors)
        if least > self._told:
            self._told = least
            _say({"all": least})


def _say(line: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Run the crowd whose job is the first line of standard input."""
    del arguments
    job = json.loads(sys.stdin.readline())
    crowd = _Crowd(job)
    try:
        crowd.begin()
        crowd.run()
    except KeyboardInterrupt:
        return 130
    except RefusedError as error:
        _say({"error": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
