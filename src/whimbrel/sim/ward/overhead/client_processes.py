"""The clients of an experiment: processes with doctors, which read lines of JSON, and a publisher in this process."""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whimbrel.errors import WhimbrelError
from whimbrel.mqtt.codec import Decoder, encode
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, Connack, Connect, Pingreq, Pingresp, Puback, Publish
from whimbrel.mqtt.properties import Properties, Property
from whimbrel.sim.ward.doctor import RefusedError
from whimbrel.sim.ward.intensive_care import CONTENT_TYPE, SUBJECT

__all__ = ["CrowdEndedError", "CrowdProcess", "Publisher", "quantile"]


_PING_S = 15.0
"""Seconds between two pings of a publisher, so that the broker does not close an idle connection."""


class CrowdEndedError(WhimbrelError):
    """A client process ended unexpectedly. Reaction: read the last line of its output."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.words = words

    def __str__(self) -> str:
        return f"a client process ended; its last words: {self.words}"


class CrowdProcess:
    """A process that runs some of the doctors, and the lines that it writes."""

    def __init__(self, job: Mapping[str, object]) -> None:
        command = [sys.executable, "-m", "whimbrel.sim.ward.overhead.crowd"]
        self.process = subprocess.Popen(  # noqa: S603 # ourselves
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.progress = 0
        self.say(job)

    def say(self, line: Mapping[str, object]) -> None:
        """Write one line to the process."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Read the next line of the process."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        told: dict[str, Any] = json.loads(line) if line else {"error": "nothing"}
        if "error" in told:
            raise CrowdEndedError(told["error"])
        if "all" in told:
            self.progress = told["all"]
        return told

    def hear_until(self, key: str) -> Any:  # noqa: ANN401 # as JSON has it
        """Read lines until one has *key*; return its value."""
        return self.hear_until_line(key)[key]

    def hear_until_line(self, key: str) -> dict[str, Any]:
        """Read lines until one has *key*; return the whole line."""
        while key not in (told := self.hear()):
            pass
        return told

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Publisher:
    """A connection that publishes at QoS 1 without blocking: bytes that the broker does not read yet are buffered."""

    def __init__(self, connect: Callable[[], socket.socket], *, name: str = "monitor") -> None:
        self._connect, self._name = connect, name
        self._unacknowledged: dict[int, tuple[int, str, bytes, Properties]] = {}
        self.sent_at: list[float] = []
        """Time at which each publication was queued for sending (CLOCK_MONOTONIC)."""
        self.acknowledged: set[int] = set()
        """Numbers of the publications that the broker accepted."""
        self.refused: set[int] = set()
        """Numbers of the publications that the broker refused because its memory was full."""
        self.open()

    def open(self) -> None:
        """Connect, and resend everything that was not acknowledged."""
        self._socket, self._out = self._connect(), bytearray()
        self._decoder, self._pinged_s = Decoder(version=V5), time.monotonic()
        self._socket.sendall(encode(Connect(self._name), V5))
        self._socket.setblocking(False)
        for identifier, (_, topic, body, properties) in self._unacknowledged.items():
            packet = Publish(topic, body, 1, packet_id=identifier, properties=properties)
            self._out += encode(packet, V5)

    def publish(self, patient: str, body: bytes, *, expiry_s: int | None = None) -> None:
        """Publish a reading whose number is the last level of the topic."""
        number = len(self.sent_at)
        values: dict[Property, object] = {Property.CONTENT_TYPE: CONTENT_TYPE}
        if expiry_s is not None:
            values[Property.MESSAGE_EXPIRY_INTERVAL] = expiry_s
        topic, properties, identifier = f"{SUBJECT}/{patient}/{number}", Properties(values), number % 65_535 + 1
        self._unacknowledged[identifier] = number, topic, body, properties
        self.sent_at.append(time.monotonic())
        self._out += encode(Publish(topic, body, 1, packet_id=identifier, properties=properties), V5)

    def go_on(self, wait_s: float) -> bool:
        """Write and read for at most *wait_s*; return whether the connection is still open."""
        if (now_s := time.monotonic()) - self._pinged_s > _PING_S:
            self._pinged_s = now_s
            self._out += encode(Pingreq(), V5)
        with selectors.DefaultSelector() as selector:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
            selector.register(self._socket, wanted)
            ready = selector.select(wait_s)
        try:
            for _, events in ready:
                if events & selectors.EVENT_WRITE:
                    sent = self._socket.send(memoryview(self._out)[: 1 << 20].tobytes())
                    del self._out[:sent]
                if events & selectors.EVENT_READ and not self._read():
                    return False
        except (ConnectionResetError, BrokenPipeError):
            return False
        return True

    def _read(self) -> bool:
        data = self._socket.recv(1 << 16)
        for packet in self._decoder.receive(data):
            if isinstance(packet, Connack) and packet.code == ReasonCode.SERVER_UNAVAILABLE:
                return False  # the broker is restoring its state
            is_welcome = isinstance(packet, Connack) and packet.code < ReasonCode.UNSPECIFIED_ERROR
            if is_welcome or isinstance(packet, Pingresp):
                continue
            if not isinstance(packet, Puback):
                raise RefusedError("the publisher", str(packet))
            if packet.packet_id in self._unacknowledged:
                number = self._unacknowledged.pop(packet.packet_id)[0]
                (self.acknowledged if packet.code < ReasonCode.UNSPECIFIED_ERROR else self.refused).add(number)
        return bool(data)

    @property
    def has_all_acknowledged(self) -> bool:
        """Whether the broker has answered every publication."""
        return not self._unacknowledged

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value at the quantile *share* of the sorted *values*; 0 if they are empty."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0
