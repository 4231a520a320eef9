"""Connections to a broker: blocking sockets that speak only the MQTT that measuring needs."""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from whimbrel.mqtt.codec import decode, encode
from whimbrel.mqtt.packets import V5, Connack, Connect, Packet, Suback, Subscribe, SubscriptionRequest
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties
from whimbrel.sim.load.load import Load, LoadError
from whimbrel.sim.load.tally import Tally

__all__ = ["PATIENCE_S", "READ_BYTES", "connect", "read_packet", "subscribe", "subscribers", "take"]

PATIENCE_S = 20
"""Timeout of one read, write or answer."""
READ_BYTES = 1 << 18
_AT_A_TIME = 200
"""Most SUBSCRIBE packets in flight."""
_TIMEVAL = struct.pack("ll", PATIENCE_S, 0)


def _exactly(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = link.recv(size - len(data))
        if not more:
            raise LoadError("a closed connection", "an answer")
        data += more
    return data


def read_packet(link: socket.socket, version: int) -> Packet:
    """Read exactly one packet; the bytes after it are left to be counted."""
    first, length = _exactly(link, 2)
    shift = 7
    more = length & 0x80
    length &= 0x7F
    while more:
        (byte,) = _exactly(link, 1)
        length |= (byte & 0x7F) << shift
        more = byte & 0x80
        shift += 7
    return decode(first, _exactly(link, length), version)


def connect(load: Load, client_id: str = "", *, is_clean: bool = True) -> socket.socket:
    """Return a connection that the broker has accepted."""
    name = client_id or f"bench-{secrets.token_hex(8)}"
    link = socket.create_connection((load.host, load.port), timeout=PATIENCE_S)
    try:
        # A timeout of Python costs a system call before every read and write; these socket options cost none.
        link.settimeout(None)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        marked = Properties(user=(("whimbrel", "1"),)) if load.version == V5 else NO_PROPERTIES
        connect = Connect(name, clean_start=is_clean, version=load.version, properties=marked)
        link.sendall(encode(connect, load.version))
        answer = read_packet(link, load.version)
        if not isinstance(answer, Connack) or answer.code:
            raise LoadError(answer, "a CONNACK that lets us in")
    except BaseException:
        link.close()
        raise
    return link


@contextmanager
def subscribers(load: Load) -> Iterator[list[socket.socket]]:
    """Connect the subscribers of *load*, without subscribing; end their sessions afterwards."""
    names = [f"bench-{secrets.token_hex(8)}" for _ in range(load.subscribers)]
    with ExitStack() as stack:
        yield [stack.enter_context(connect(load, name, is_clean=not load.is_stored)) for name in names]
    if load.is_stored:
        for name in names:
            connect(load, name).close()


def subscribe(link: socket.socket, load: Load, filters: Sequence[str] = ()) -> None:
    """Subscribe to the topic of *load*, once per content filter if there are any."""
    requests = (SubscriptionRequest(load.topic, load.qos),)
    options = [Properties(user=(("filter", text), ("name", f"n{number}"))) for number, text in enumerate(filters)] or [
        NO_PROPERTIES
    ]
    for begin in range(0, len(options), _AT_A_TIME):
        some = options[begin : begin + _AT_A_TIME]
        link.sendall(b"".join(encode(Subscribe(n + 1, requests, p), load.version) for n, p in enumerate(some)))
        for _ in some:
            answer = read_packet(link, load.version)
            if not isinstance(answer, Suback) or any(code != load.qos for code in answer.codes):
                raise LoadError(answer, f"a SUBACK that grants QoS {load.qos}")


def take(link: socket.socket, tally: Tally) -> int:
    """Read and acknowledge publications; return the number received so far."""
    data = link.recv(READ_BYTES)
    if not data:
        raise LoadError("a closed connection", "publications")
    acknowledgements = tally.receive(data)
    if acknowledgements:
        link.sendall(acknowledgements)
    return tally.count
