"""The way of a publication through the core, counted in files: ceilings that only go down.

How a way is traced: the real core runs on ``broker_rig``. While a way is traced, ``Broker.receive``, ``on_sync`` and
``go_on`` run under ``sys.setprofile``, which says each call of a Python function. The shell (sockets, fsync, the rig's
own decoding) is outside. A way is walked a few times first, so that caches are full, as in a broker that has run for a
minute.
A file counts once, at its first entry; only files of ``src/whimbrel`` count. An entry into ``publishing.py`` is a call
of one of its functions, where the call before it was of a function of another file: so often does a reader who follows
the calls in order turn to that file.
Rule: a ceiling is what the core takes today. A change that lowers a figure lowers the ceiling in the same commit; a
change that raises one says why in its body.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import pytest
from broker_rig import Peer, Rig, publishing, subscribing

import whimbrel
from whimbrel.broker.broker import Broker
from whimbrel.mqtt.packets import Puback, Publish
from whimbrel.mqtt.properties import Properties

_SOURCE = f"{Path(whimbrel.__file__).parent}/"
_PUBLISHING = "broker/publish/publishing.py"
_ENTRIES_OF_THE_CORE = ("receive", "on_sync", "go_on")
_WARM_UPS = 3
_SUBJECT = "ward/7/pulse"
_POLICY = b"if (device.Battery < 0.5) { return NULL; } return m;"


class _Way:
    """The files that the core entered, in order, and how often it came into ``publishing.py``."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.entries = 0
        self._last: str | None = None

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        """Take in one event of ``sys.setprofile``."""
        if event != "call" or (file := _file_of(frame)) is None:
            return
        self.files.setdefault(file)
        self.entries += file == _PUBLISHING != self._last
        self._last = file

    @contextmanager
    def traced(self, broker: Broker) -> Iterator[None]:
        """Trace what the shell asks *broker* to do."""
        with ExitStack() as stack:
            for name in _ENTRIES_OF_THE_CORE:
                stack.enter_context(patch.object(broker, name, self._tracing(getattr(broker, name))))
            yield

    def _tracing(self, call: Callable[..., None]) -> Callable[..., None]:
        def traced(*arguments: Any) -> None:
            before = sys.getprofile()
            sys.setprofile(self.note)
            try:
                call(*arguments)
            finally:
                sys.setprofile(before)

        return traced

    def check(self, files: int, entries: int) -> None:
        """Fail with the whole way if it is longer than allowed."""
        listed = "\n".join(f"{number:3d} {file}" for number, file in enumerate(self.files, start=1))
        assert len(self.files) <= files, f"{len(self.files)} files, {files} allowed:\n{listed}"
        assert self.entries <= entries, f"{self.entries} entries into {_PUBLISHING}, {entries} allowed"


def _file_of(frame: FrameType) -> str | None:
    name = frame.f_code.co_filename
    return name.removeprefix(_SOURCE) if name.startswith(_SOURCE) else None


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker."""
    return Rig(tmp_path)


def _publication(number: int, *user: tuple[str, str]) -> Publish:
    return Publish(_SUBJECT, b"61", 1, packet_id=number, properties=Properties(user=user))


def _walked(rig: Rig, subscriber: Peer, *user: tuple[str, str], is_confirmed: bool = False) -> _Way:
    """Return the way of a publication that *subscriber* receives, and whose PUBACK belongs to it if *is_confirmed*."""
    publisher = rig.client("publisher")
    for number in range(1, _WARM_UPS + 2):
        way = _Way()
        with way.traced(rig.broker):
            publisher.send(_publication(number, *user))
            rig.settle()
        assert publisher.taken(Puback) == [Puback(number)]
        (arrived,) = subscriber.taken(Publish)
        assert arrived.payload == b"61"
        if is_confirmed:
            with way.traced(rig.broker):
                _confirm(rig, subscriber, arrived)
        else:
            _confirm(rig, subscriber, arrived)
    return way


def _confirm(rig: Rig, subscriber: Peer, arrived: Publish) -> None:
    subscriber.send(Puback(arrived.packet_id))
    rig.settle()


def test_to_a_clean_session(rig: Rig) -> None:
    """With the plan in hand: neither fsynced nor held."""
    _walked(rig, rig.subscriber("phone", "ward/#", qos=1)).check(files=15, entries=2)


def test_to_a_stored_session(rig: Rig) -> None:
    """Read, fsynced, held and written: the way that a broker is bought for."""
    _walked(rig, rig.subscriber("phone", "ward/#", qos=1, expiry_s=60)).check(files=18, entries=2)


def test_to_a_stored_session_with_its_receipt(rig: Rig) -> None:
    """The PUBACK of the subscriber ends in the log."""
    phone = rig.subscriber("phone", "ward/#", qos=1, expiry_s=60)
    _walked(rig, phone, is_confirmed=True).check(files=22, entries=2)


def test_with_a_user_property(rig: Rig) -> None:
    """One property of a publication, and the whole way is another."""
    phone = rig.subscriber("phone", "ward/#", qos=1, expiry_s=60)
    _walked(rig, phone, ("unit", "bpm")).check(files=31, entries=10)


def test_to_a_named_session(rig: Rig) -> None:
    """A member that subscribes in a session of several devices."""
    rig.client("operator").ask("create", session="ward")
    member = rig.client("phone", user=(("session", "ward"),))
    member.send(subscribing("ward/#", qos=1))
    rig.settle()
    member.take()
    _walked(rig, member).check(files=32, entries=2)


def test_through_the_policy_of_the_device(rig: Rig) -> None:
    """A decision is a fact of its own, and goes through the log before the copy goes out."""
    phone = rig.subscriber("phone", "ward/#", qos=1, expiry_s=60)
    phone.send(publishing("$whimbrel/policy/low", _POLICY, qos=1, packet_id=1))
    rig.settle()
    phone.send(publishing("$whimbrel/policy", b"low", qos=1, packet_id=2))
    phone.send(publishing("$whimbrel/report", b'{"battery": 0.9}'))
    rig.settle()
    phone.take()
    _walked(rig, phone).check(files=48, entries=2)  # two of them keep what was decoded and hashed


def test_of_a_connect_to_a_stored_session(rig: Rig) -> None:
    """The client comes back, and gets the one message that was held meanwhile."""
    phone = rig.subscriber("phone", "ward/#", qos=1, expiry_s=60)
    publisher = rig.client("publisher")
    for number in range(1, _WARM_UPS + 2):
        phone.drop()
        publisher.send(_publication(number))
        rig.settle()
        way = _Way()
        with way.traced(rig.broker):
            phone = rig.client("phone", clean=False, expiry_s=60)
        (arrived,) = phone.taken(Publish)
        _confirm(rig, phone, arrived)
    way.check(files=36, entries=0)
