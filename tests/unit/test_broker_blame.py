"""Whose fault a failure is: a body that cannot be made smaller is its publisher's, and nobody's policy ends by it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from broker_rig import NODE, Peer, Rig, publishing, subscribing
from PIL import Image
from single_process import SingleProcess

from whimbrel.broker.deliver import shaping
from whimbrel.log.reader import read
from whimbrel.model.facts import Decided
from whimbrel.mqtt.packets import Publish
from whimbrel.shape.faults import Fault
from whimbrel.shape.state import FAILURES

_GUARD = "if (m.secret == 1) { return NULL; } return compress(m, 0.5, 0, 1);"
_REMEMBER = "state.last = m.said; return m;"
"""It fails if somebody says more than a variable may have."""
_LONG = json.dumps({"said": "x" * 20_000}).encode()
_SHORT = b'{"said":"hello"}'


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker."""
    return Rig(tmp_path)


def picture(side: int = 16) -> bytes:
    """Return a JPEG."""
    out = io.BytesIO()
    Image.new("RGB", (side, side)).save(out, "JPEG")
    return out.getvalue()


def phone(rig: Rig, policy: str, name: str = "phone", *, of: str = "p") -> Peer:
    """Return a device that has chosen *policy*."""
    peer = rig.client(name)
    peer.send(Publish(f"$whimbrel/policy/{of}", policy.encode()), Publish("$whimbrel/policy", of.encode()))
    peer.send(subscribing("ward/#"))
    rig.settle()
    peer.take()
    return peer


def reasons(rig: Rig) -> list[str | None]:
    """Return why each decision failed."""
    rig.sync()
    return [fact.reason for fact in read(rig.folder, NODE) if isinstance(fact, Decided)]


@pytest.mark.parametrize("fault", [Fault.TIME_OUT, Fault.UNREADABLE, Fault.PIXELS, Fault.ERROR])
def test_a_stranger_s_pictures_switch_no_policy_off(rig: Rig, fault: Fault) -> None:
    """SUBLIM 4.3: what takes too long is a NULL message. The pool's answer is all that decides about the picture."""
    device, stranger = phone(rig, _GUARD), rig.client("stranger")
    for _ in range(FAILURES + 2):
        stranger.send(publishing("ward/3", picture()))
        rig.sync()
        rig.next_turn()
        job = rig.broker.transforms.popleft()
        rig.broker.on_answer(job, fault, rig.now)
    stranger.send(publishing("ward/3", b'{"secret":1}'))
    rig.settle()
    assert device.payloads() == []
    assert not rig.state.decisions.shape.has_suspended("p")


def test_a_stranger_s_json_switches_no_policy_off(rig: Rig) -> None:
    """A half of a surrogate pair is JSON and no UTF-8: a projection of it fails, by no fault of the policy."""
    device, stranger = phone(rig, "return project(m, 'a');"), rig.client("stranger")
    for _ in range(FAILURES):
        stranger.send(publishing("ward/3", b'{"a":"\\ud800"}'))
    stranger.send(publishing("ward/3", b'{"a":1,"b":2}'))
    rig.settle()
    assert device.payloads() == [b'{"a":1}']
    assert reasons(rig) == [Fault.UNREADABLE.value] * FAILURES + [None]


def test_a_failure_suspends_a_policy_for_one_device_and_one_publisher(rig: Rig) -> None:
    """What one publisher's messages do to a policy changes nothing for the others; what is suspended is withheld."""
    device, other = phone(rig, _REMEMBER), phone(rig, _REMEMBER, "other", of="q")
    stranger, monitor = rig.client("stranger"), rig.client("monitor")
    for _ in range(FAILURES):
        stranger.send(publishing("ward/3", _LONG))
        monitor.send(publishing("ward/3", _SHORT))  # its successes are not the stranger's
        rig.settle()
    assert device.payloads() == [_SHORT] * FAILURES
    stranger.send(publishing("ward/3", _SHORT))
    monitor.send(publishing("ward/3", _SHORT))
    rig.settle()
    assert device.payloads() == [_SHORT]
    assert reasons(rig).count(Fault.SUSPENDED.value) == 2  # one of each device
    other.take()
    other.send(Publish("$whimbrel/policy/q", b"return m;"))  # put anew
    stranger.send(publishing("ward/3", _SHORT))
    rig.settle()
    assert (device.payloads(), other.payloads()) == ([], [_SHORT])


def test_the_owner_may_have_everything_sent_while_a_policy_is_suspended(rig: Rig) -> None:
    """For a policy that only saves a battery, a message too many is better than one too few."""
    device, stranger = phone(rig, "sendWhenSuspended(); " + _REMEMBER), rig.client("stranger")
    for _ in range(FAILURES):
        stranger.send(publishing("ward/3", _LONG))
    rig.settle()
    assert device.payloads() == []
    stranger.send(publishing("ward/3", _LONG))
    rig.settle()
    assert device.payloads() == [_LONG]


def test_the_pipeline_finds_a_suspension_again(rig: Rig) -> None:
    """By the same counts, from the log alone; a decision that claims a suspension that is none is a difference."""
    phone(rig, _REMEMBER)
    stranger = rig.client("stranger")
    for _ in range(FAILURES + 3):
        stranger.send(publishing("ward/3", _LONG))
        rig.settle()
    rig.sync()
    facts = list(read(rig.folder, NODE))
    rows = SingleProcess(assume_receipts=False).run(facts).deliveries
    assert [row.difference for row in rows if row.device == "phone"] == [None] * (FAILURES + 3)
    fewer = [fact for fact in facts if not (isinstance(fact, Decided) and fact.reason == Fault.VARIABLES.value)]
    rows = SingleProcess(assume_receipts=False).run(fewer).deliveries
    told = [row.difference for row in rows if row.device == "phone" and row.difference is not None]
    assert len(told) == 3
    assert "is not suspended" in told[0]


def slow_picture(number: int) -> bytes:
    """Return a JPEG whose transform is never done here; each is another."""
    return picture(16 + number)


@pytest.mark.parametrize("plain", [b"plain", b"plain" * 5_000, b'{"a":"' + b"x" * 5_000 + b'"}'])
def test_a_plain_copy_waits_for_slow_pictures_no_longer_than_for_one(rig: Rig, plain: bytes) -> None:
    """Eight pictures that each take all their time would silence a device for seconds."""
    device, monitor = phone(rig, _GUARD), rig.client("monitor")
    for number in range(8):
        monitor.send(publishing("ward/3", slow_picture(number)))
    monitor.send(publishing("ward/3", plain))
    rig.sync()
    rig.work()
    job = rig.broker.transforms.popleft()  # the shell makes one at a time
    rig.now += 300_000
    rig.broker.on_answer(job, None, rig.now)  # as the shell asks while a body is made
    rig.work()
    assert (device.payloads(), job.is_pending) == ([], True)
    rig.now += 200_000
    rig.broker.on_answer(job, None, rig.now)
    rig.flush()
    rig.work()
    assert (device.payloads(), len(rig.broker.transforms)) == ([plain], 0)
    assert reasons(rig) == [Fault.TIME_OUT.value] * 8 + [None]


def test_more_pictures_than_are_looked_at_make_no_copy_wait(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever sends more of them hides the alarm behind them."""
    monkeypatch.setattr(shaping, "_MAX_LOOKED_AT", 4)
    device, monitor = phone(rig, _GUARD), rig.client("monitor")
    for number in range(8):
        monitor.send(publishing("ward/3", slow_picture(number)))
    monitor.send(publishing("ward/3", b"plain"))
    rig.sync()
    rig.work()
    job = rig.broker.transforms.popleft()
    rig.now += 500_000
    rig.broker.on_answer(job, None, rig.now)
    rig.flush()
    rig.work()
    assert device.payloads() == [b"plain"]


def test_pictures_wait_for_each_other_while_nothing_else_waits(rig: Rig) -> None:
    """A burst of pictures is late, and complete: only what needs none of that time may cost them."""
    device, monitor = phone(rig, "if (m.secret == 1) { return NULL; } return compress(m, 0.1, 0, 1);"), rig.client("m")
    for number in range(4):
        monitor.send(publishing("ward/3", slow_picture(number)))
    rig.sync()
    rig.work()
    for _ in range(4):
        rig.now += 400_000
        job = rig.broker.transforms.popleft()
        rig.broker.on_answer(job, None, rig.now)
        rig.broker.on_answer(job, b"small", rig.now)
        rig.flush()
        rig.work()
    assert device.payloads() == [b"small"] * 4
