"""Hostile links: connections that never block, of which hundreds are served by one loop; the answers are counted.

Rule: packets are encoded before they are sent again and again, so that the attacker, not its encoder, is what costs.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from types import TracebackType
from typing import Self

from whimbrel.mqtt.codec import Decoder, encode
from whimbrel.mqtt.packets import (
    V5,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property

__all__ = ["HOST", "HostileLink", "HostileLinks", "connect", "publish", "subscribe"]

HOST = "127.0.0.1"
_READ_BYTES = 1 << 18
_names = count(1)


class HostileLink:
    """One connection: bytes to send wait in it, packets that came stand in ``inbox`` until they are taken."""

    def __init__(self, links: HostileLinks, sock: socket.socket, *, is_read: bool) -> None:
        self._links, self.sock = links, sock
        self.decoder = Decoder(version=V5) if is_read else None
        self.waiting = bytearray()
        self.inbox: list[Packet] = []
        self.is_closed = False
        self.received_bytes = 0

    def send(self, *parts: bytes) -> None:
        """Let *parts* be sent as soon as the broker takes them."""
        for part in parts:
            self.waiting += part
        self._links.watch(self)

    def take(self) -> list[Packet]:
        """Return what came since the last time."""
        taken, self.inbox = self.inbox, []
        return taken

    def close(self) -> None:
        """Close without a word."""
        if not self.is_closed:
            self._links.forget(self)


class HostileLinks:
    """All connections of one attacker; ``told`` counts the answers by packet and reason code."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.links: set[HostileLink] = set()
        self.told: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for link in list(self.links):
            link.close()
        self._selector.close()

    def open(self, port: int, *first: bytes, source: str = "", is_read: bool = True) -> HostileLink | None:
        """Begin to connect and send *first*; None where the system has no more sockets."""
        sock = socket.socket()
        sock.setblocking(False)
        try:
            if source:
                sock.bind((source, 0))
            sock.connect_ex((HOST, port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = HostileLink(self, sock, is_read=is_read)
            self._selector.register(sock, selectors.EVENT_READ, link)
        except OSError:
            sock.close()
            return None
        self.links.add(link)
        if first:
            link.send(*first)
        return link

    def watch(self, link: HostileLink) -> None:
        """Ask the system about what *link* waits for."""
        if not link.is_closed:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.waiting else 0)
            self._selector.modify(link.sock, events, link)

    def forget(self, link: HostileLink) -> None:
        """Close a link."""
        link.is_closed = True
        self._selector.unregister(link.sock)
        link.sock.close()
        self.links.discard(link)

    def turn(self, timeout_s: float = 0.01) -> None:
        """Write and read whatever can be, once."""
        for key, events in self._selector.select(timeout_s):
            link: HostileLink = key.data
            try:
                if events & selectors.EVENT_WRITE:
                    self._write(link)
                if events & selectors.EVENT_READ:
                    self._read(link)
            except BlockingIOError:
                continue
            except OSError:
                self._end(link)

    def run_until(self, deadline: float, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Serve the links until *deadline* or until it *is_over*; return whether it is."""
        while not (found := is_over()) and time.monotonic() < deadline:
            self.turn()
        return found

    def _write(self, link: HostileLink) -> None:
        sent = link.sock.send(memoryview(link.waiting)[: 1 << 20])
        del link.waiting[:sent]
        if not link.waiting:
            self.watch(link)

    def _read(self, link: HostileLink) -> None:
        data = link.sock.recv(_READ_BYTES)
        if not data:
            self._end(link)
            return
        link.received_bytes += len(data)
        if link.decoder is not None:
            packets = link.decoder.receive(data)
            link.inbox += packets
            self.told.update(word for packet in packets for word in _words(packet))

    def _end(self, link: HostileLink) -> None:
        self.told["closed"] += 1
        self.forget(link)


def _words(packet: Packet) -> Iterable[str]:
    """Yield what *packet* says: its kind, and its reason codes."""
    kind = type(packet).__name__.upper()
    if isinstance(packet, Suback):
        return [f"{kind} 0x{code:02x}" for code in packet.codes]
    if isinstance(packet, Connack | Puback | Disconnect):
        return [f"{kind} 0x{packet.code:02x}"]
    return [kind]


# -- packets -----------------------------------------------------------------------------------------------------------


def connect(
    client_id: str = "",
    *,
    expiry_s: int = 0,
    is_clean: bool = True,
    username: str | None = None,
    password: bytes | None = None,
    receive_maximum: int = 65_535,
) -> bytes:
    """Return a CONNECT of a client that knows Whimbrel."""
    told: dict[Property, object] = {Property.RECEIVE_MAXIMUM: receive_maximum}
    if expiry_s:
        told[Property.SESSION_EXPIRY_INTERVAL] = expiry_s
    return encode(
        Connect(
            client_id or f"client-{os.getpid()}-{next(_names)}",
            clean_start=is_clean,
            username=username,
            password=password,
            properties=Properties(told, user=(("whimbrel", "1"),)),
        ),
        V5,
    )


def subscribe(*topic_filters: str, qos: int = 0, packet_id: int = 1, **options: str) -> bytes:
    """Return a SUBSCRIBE; *options* are its user properties."""
    requests = tuple(SubscriptionRequest(each, qos) for each in topic_filters)
    properties = Properties(user=tuple(options.items())) if options else NO_PROPERTIES
    return encode(Subscribe(packet_id, requests, properties), V5)


def publish(topic: str, payload: bytes, qos: int = 0, packet_id: int = 0, *, retain: bool = False) -> bytes:
    """Return a PUBLISH without properties."""
    return encode(Publish(topic, payload, qos, retain=retain, packet_id=packet_id), V5)
