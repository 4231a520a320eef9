"""Slow links between a doctor's device and a broker, with real delays: the kernel's traffic control, or a relay.

Both pass bytes to the device at a rate that can change at any time, through a bounded queue; the other direction is not
limited. ``ShapedLink`` is a token bucket filter (tbf) of ``tc`` between two network namespaces; it needs root and a
kernel with tbf. ``RelayedLink`` is a relay in user space, which reads from the broker only while its queue has room, so
that back-pressure reaches the broker as on a real link.
Rule: make a link before starting its broker, because the broker may have to be in the link's namespace.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from random import Random
from threading import Event, Thread, get_native_id
from typing import Protocol, TypeVar

from whimbrel.errors import InvalidValueError, WhimbrelError
from whimbrel.model.bounds import whole

__all__ = ["QUEUE_BYTES", "NoNamespaceError", "RelayedLink", "ShapedLink", "SlowLink", "drawn_rates", "why_not_shaped"]

T = TypeVar("T")

QUEUE_BYTES = 64 << 10
"""Capacity of the queue before a link, as in an access point of the paper's time."""
_CLONE_NEWNET = 0x4000_0000
_BROKER_SIDE, _DEVICE_SIDE = "10.53.0.1", "10.53.0.2"
_BURST_BYTES = 4 << 10
_PIECE_BYTES = 1_460
_TICK_S = 0.005
_LATE_S = 0.05
"""Delay of the relay's thread up to which it still passes the full rate."""
_CONNECT_S = 30.0


class NoNamespaceError(WhimbrelError):
    """Network namespaces or ``tc`` cannot be used here. Reaction: be root, or use the relay."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"no link of tc: {self.reason}; be root where the kernel has tbf, or take the relay"


class SlowLink(Protocol):
    """The interface of all slow links."""

    host: str
    """Address on which the broker must listen."""

    def connect(self, port: int) -> socket.socket:
        """Connect the device to the broker on *port*; return the device's socket."""
        ...

    def set_rate(self, bits_per_s: int) -> None:
        """Set the rate to the device, from now on."""
        ...

    def close(self) -> None:
        """Close the link."""
        ...


def drawn_rates(random: Random, *, low: int = 300_000, high: int = 3_000_000) -> Callable[[], int]:
    """Return a function that draws the next rate in bits per second, uniformly (SUBLIM, 6.3)."""
    whole("low", low, 1, high)
    return lambda: random.randint(low, high)


# -- traffic control ---------------------------------------------------------------------------------------------------


class ShapedLink:
    """A link by traffic control: two network namespaces and a veth pair; this process is on the broker's side.

    It moves the calling process into a new namespace, so that process should do nothing else.
    """

    def __init__(self, *, queue_bytes: int = QUEUE_BYTES) -> None:
        self.host = _BROKER_SIDE
        self._queue_bytes = queue_bytes
        _unshare()
        self._stays = Event()
        self._jobs: deque[tuple[Callable[[], object], Event, list[object]]] = deque()
        self._wakes = Event()
        self._thread = Thread(target=self._beyond, name="whimbrel-device", daemon=True)
        try:
            _run("ip", "link", "set", "lo", "up")
            _run("ip", "link", "add", "broker", "type", "veth", "peer", "name", "device")
            self._thread.start()
            number = self._there(get_native_id)
            _run("ip", "link", "set", "device", "netns", f"/proc/{os.getpid()}/task/{number}/ns/net")
            _run("ip", "address", "add", f"{_BROKER_SIDE}/30", "dev", "broker")
            _run("ip", "link", "set", "broker", "up")
            self._there(lambda: _run("ip", "address", "add", f"{_DEVICE_SIDE}/30", "dev", "device"))
            self._there(lambda: _run("ip", "link", "set", "device", "up"))
            self.set_rate(1_000_000)
        except BaseException:
            self.close()
            raise

    def connect(self, port: int) -> socket.socket:
        """Connect the device to the broker on *port*; return the device's socket."""
        return self._there(lambda: socket.create_connection((_BROKER_SIDE, port), timeout=_CONNECT_S))

    def set_rate(self, bits_per_s: int) -> None:
        """Set the rate to the device, from now on."""
        rate = f"{bits_per_s}bit"
        burst, limit = f"{_BURST_BYTES}b", f"{self._queue_bytes}b"
        bucket = ("tbf", "rate", rate, "burst", burst, "limit", limit)
        _run("tc", "qdisc", "replace", "dev", "broker", "root", *bucket)

    def close(self) -> None:
        """End the thread of the device's side; the veth pair disappears with the namespaces."""
        self._stays.set()
        self._wakes.set()

    def _there(self, job: Callable[[], T]) -> T:
        """Run *job* on the device's side and return its result."""
        done, result = Event(), list[object]()
        self._jobs.append((job, done, result))
        self._wakes.set()
        done.wait()
        found = result[0]
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[return-value]  # of this job

    def _beyond(self) -> None:
        """Run jobs in the device's namespace, which belongs to this thread; sockets opened here stay in it."""
        failure: Exception | None = None
        try:
            _unshare()
        except NoNamespaceError as error:
            failure = error
        while not self._stays.is_set():
            self._wakes.wait()
            self._wakes.clear()
            while self._jobs:
                job, done, result = self._jobs.popleft()
                try:
                    result.append(failure or job())
                except Exception as error:  # noqa: BLE001 # raised in the waiting thread
                    result.append(error)
                done.set()


_TRY_IT = f"""
import sys
from {__name__} import NoNamespaceError, ShapedLink
try:
    ShapedLink().close()
except NoNamespaceError as error:
    sys.exit(str(error))
"""


def why_not_shaped() -> str | None:
    """Return the reason why ``ShapedLink`` does not work here, or ``None`` if it works; tried in another process."""
    done = subprocess.run([sys.executable, "-c", _TRY_IT], capture_output=True, text=True, check=False)  # noqa: S603 # ours
    return None if not done.returncode else (done.stderr.strip().splitlines() or ["no reason"])[-1]


def _unshare() -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "unshare"):
        raise NoNamespaceError("this is not Linux")
    if library.unshare(_CLONE_NEWNET):
        raise NoNamespaceError(os.strerror(ctypes.get_errno()))


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 # ours
    except OSError as error:
        raise NoNamespaceError(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        raise NoNamespaceError(f"{' '.join(command[:3])}: {done.stderr.strip() or done.returncode}")


# -- a relay -----------------------------------------------------------------------------------------------------------


class RelayedLink:
    """A relay on this machine; its thread passes bytes on at the set rate."""

    def __init__(self, *, queue_bytes: int = QUEUE_BYTES) -> None:
        self.host = "127.0.0.1"
        self._queue_bytes = whole("queue_bytes", queue_bytes, _PIECE_BYTES, 1 << 30)
        self._bytes_per_s = 125_000.0
        self._is_over = Event()
        self._thread: Thread | None = None
        self._ends: list[socket.socket] = []

    def connect(self, port: int) -> socket.socket:
        """Connect the device to the broker on *port*; return the device's socket."""
        if self._thread is not None:
            raise InvalidValueError("connections of a relay", 2, "one")
        there = socket.socket()
        there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._queue_bytes // 2)  # the kernel doubles it
        there.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _PIECE_BYTES)  # else buffers are of 64 KiB segments
        there.connect((self.host, port))
        listening = socket.create_server((self.host, 0))
        device = socket.create_connection(listening.getsockname())
        here, _ = listening.accept()
        listening.close()
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BURST_BYTES)
        for end in (here, there):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setblocking(False)
        self._ends = [here, there]
        self._thread = Thread(target=self._relay, args=(here, there), name="whimbrel-relay", daemon=True)
        self._thread.start()
        return device

    def set_rate(self, bits_per_s: int) -> None:
        """Set the rate to the device, from now on."""
        self._bytes_per_s = bits_per_s / 8

    def close(self) -> None:
        """Close the link."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        for end in self._ends:
            end.close()

    def _relay(self, device: socket.socket, broker: socket.socket) -> None:
        """Pass bytes on: to the broker at once, to the device by a token bucket."""
        queue, tokens, before_s = bytearray(), 0.0, time.monotonic()
        while not self._is_over.is_set():
            wanted = [device, *([broker] if len(queue) < self._queue_bytes else [])]
            ready, _, _ = select.select(wanted, [], [], _TICK_S)
            now_s = time.monotonic()
            most = max(_BURST_BYTES, _LATE_S * self._bytes_per_s)
            tokens = min(most, tokens + (now_s - before_s) * self._bytes_per_s)
            before_s = now_s
            try:
                if device in ready:
                    data = device.recv(1 << 16)
                    if not data:
                        return
                    broker.sendall(data)
                if broker in ready:
                    data = broker.recv(self._queue_bytes - len(queue))
                    if not data:
                        return
                    queue += data
                while queue and tokens >= min(_PIECE_BYTES, len(queue)):
                    sent = device.send(queue[: min(_PIECE_BYTES, int(tokens))])
                    tokens -= sent
                    del queue[:sent]
            except BlockingIOError:
                continue
            except OSError:
                return  # one side has closed
