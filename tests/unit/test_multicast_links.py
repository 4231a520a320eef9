"""The link of nodes: a socket says why it cannot be used, and loopback does what multicast would do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.multicast.loopback import LoopbackLink
from whimbrel.multicast.reach import Reach
from whimbrel.multicast.sockets import MulticastSocket, NoMulticastError, hashed_address

if TYPE_CHECKING:
    import socket


class _TwoInterfaces:
    """A socket that was sent one datagram over each of two interfaces; the kernel gives the index of each (scope)."""

    def __init__(self, sources: list[tuple[str, int, int, int]]) -> None:
        self.sources = sources

    def recvmsg(self, *_sizes: int) -> tuple[bytes, list[object], int, tuple[str, int, int, int]]:
        """Return the next datagram."""
        if not self.sources:
            raise BlockingIOError
        return b"hello", [], 0, self.sources.pop(0)


def test_an_interface_that_is_not_there_is_named() -> None:
    """An operator sees which interfaces there are."""
    with pytest.raises(NoMulticastError, match=r"interface none0 .* there is no such interface; there are .*lo"):
        MulticastSocket("none0", port=0)


def test_the_address_of_a_name_is_link_local_multicast() -> None:
    """Two nodes that know the name need no registry for its address."""
    assert hashed_address("campus").startswith("ff12:")
    assert hashed_address("campus") == hashed_address("campus") != hashed_address("street")


def test_a_datagram_over_loopback_reaches_who_listens_on_its_address() -> None:
    """The sender hears its own, as on a link that loops datagrams back."""
    everybody: list[LoopbackLink] = []
    one, other, deaf = (LoopbackLink(everybody) for _ in range(3))
    address = hashed_address("campus")
    for link in (one, other):
        link.listen(frozenset([address]))
    assert one.send(b"hello", [address]) == 0
    heard = [link.receive() for link in (one, other, deaf)]
    assert [found and found[0] for found in heard] == [b"hello", b"hello", None]
    for link in (one, other, deaf):
        link.close()


def test_a_datagram_that_came_by_another_interface_is_not_heard() -> None:
    """A machine with two interfaces on one link would hear every datagram twice."""
    link = LoopbackLink([])
    link.close()
    link.index = 4
    link.socket = cast("socket.socket", _TwoInterfaces([("fe80::1", 7, 0, 3), ("fe80::1", 7, 0, 4)]))
    assert link.receive() == (b"hello", 0, "fe80::1")
    assert link.receive() is None


def test_reach_names_the_senders_that_are_heard_and_follows_its_file(tmp_path: Path) -> None:
    """A partition is made and healed while nodes run."""
    path = tmp_path / "reach.json"
    path.write_text(json.dumps({"car": ["light"]}), encoding="utf-8")
    reach = Reach("car", path=path)
    assert [reach.hears(name) for name in ("light", "ambulance")] == [True, False]
    assert Reach("light", path=path).hears("ambulance")
    path.write_text("{}  ", encoding="utf-8")
    reach._changed = -1  # two writes may share a time stamp
    reach.refresh()
    assert reach.hears("ambulance")
    path.write_text('{"car": "light"}', encoding="utf-8")
    with pytest.raises(InvalidValueError, match="a list of nodes"):
        Reach("car", path=path)
