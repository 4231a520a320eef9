"""Parts of the retrieval of Figure 1b in network namespaces: a node whose clock stands still, and two strangers.

``python campus_figure.py node DATA AT`` runs a node at the time AT, in microseconds. ``python campus_figure.py listen``
prints a line for each frame on eth0: the sender, and what it says. ``python campus_figure.py drain``
asks a node of another machine for copies from eight invented addresses, acknowledges them, and prints each answer.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import struct
import sys
from typing import Any

from whimbrel.carry.daemon.service import NodeService, stop_at_signals
from whimbrel.carry.daemon.settings import NodeSettings
from whimbrel.carry.hello import Acknowledgement, Hello, Refusal, Request
from whimbrel.carry.neighbours.shares import OWN_HOST
from whimbrel.carry.transport.udp import PORT, UdpTransport
from whimbrel.carry.wire import AnswerChunk, decode
from whimbrel.errors import WhimbrelError
from whimbrel.multicast.sockets import MulticastSocket

_IPV6, _UDP = 0x86DD, 17
_EVERYTHING = 3
"""ETH_P_ALL: what leaves this node as well as what arrives."""
_HEADERS = struct.Struct("!12xH6xB33x8x")
"""Ethernet, of which the kind of packet counts, IPv6, of which the next header, and UDP."""


def run_node(data: str, at: int) -> None:
    """Run the node with the data folder *data*, whose clock stands at *at*."""
    settings = NodeSettings(data=data, address=data.removeprefix("node-"), topics="topics", hello_s=0.2)
    service = NodeService(settings, own=lambda: at)

    async def serve() -> None:
        stop = asyncio.Event()
        stop_at_signals(stop)
        await service.run(stop)

    service.open()
    asyncio.run(serve())
    service.close()


def listen() -> None:
    """Print what is said on eth0."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERYTHING)) as link:
        link.bind(("eth0", 0))
        print("listening", flush=True)  # noqa: T201 # the test waits for it
        while True:
            packet = link.recv(65_535)
            if len(packet) < _HEADERS.size or _HEADERS.unpack_from(packet) != (_IPV6, _UDP):
                continue
            try:
                sender, part = decode(packet[_HEADERS.size :])
            except WhimbrelError:
                continue  # another's datagram
            print(json.dumps([sender, *_said(part)]), flush=True)  # noqa: T201 # the test reads it


def drain() -> None:
    """Ask the first node that is heard for copies of its first sample, from one invented address after another."""
    for address in range(0x66, 0x6E):
        transport = UdpTransport(address, MulticastSocket("eth0", port=PORT))
        victim, hello = _next_from_elsewhere(transport, Hello)
        topic, sample_id, _ = hello.entries[0]
        transport.say(Hello(()))
        transport.send(victim, Request(topic=topic, id=sample_id, is_subscriber=False, wants_copies=True))
        _, answer = _next_from_elsewhere(transport, (AnswerChunk, Refusal))
        if isinstance(answer, AnswerChunk):
            transport.send(victim, Acknowledgement(topic, sample_id, answer.copies))
        print(type(answer).__name__, flush=True)  # noqa: T201 # the test reads it
        transport.close()


def _next_from_elsewhere(transport: UdpTransport, kinds: type | tuple[type, ...]) -> tuple[int, Any]:
    """Wait for a frame of one of these *kinds* from another machine; return its sender and the frame."""
    while True:
        select.select(transport.filenos(), [], [])
        heard = transport.receive()
        if heard is not None and heard.host != OWN_HOST and isinstance(heard.part, kinds):
            return heard.sender, heard.part


def _said(part: object) -> list[object]:
    match part:
        case Hello(entries):
            return ["Hello", [[topic, sample_id.published_at, sample_id.publisher] for topic, sample_id, _ in entries]]
        case Request(topic=topic, id=name) | Acknowledgement(topic, name) | Refusal(topic, name):
            return [type(part).__name__, [topic, *name]]
        case AnswerChunk():
            return ["Answer", [part.topic, *part.id], part.chunk.decode(errors="replace")]
    return [type(part).__name__]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["node", data, at]:
            run_node(data, int(at))
        case ["listen"]:
            listen()
        case ["drain"]:
            drain()
