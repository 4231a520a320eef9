"""Steps of policies: what a run compares is counted, and a device that takes too many waits."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import Rig, publishing, subscribing
from policy_interpreter import interpret
from single_process import SingleProcess

from whimbrel.broker.limits.work_budget import FREE_STEPS, StepBudget
from whimbrel.broker.settings.config import Config, PolicySettings
from whimbrel.errors import PolicyError
from whimbrel.language.policies import Policy, PolicyLimits
from whimbrel.language.policies.values import Arrival, Run
from whimbrel.log.reader import read
from whimbrel.model.facts import Decided
from whimbrel.model.notification import Notification
from whimbrel.mqtt.packets import Publish
from whimbrel.shape.decision import decide

SECOND_US = 1_000_000
LONG = "x" * 16_384


@pytest.mark.parametrize(
    ("comparison", "steps"),
    [
        ("m.a < m.b", 64),
        ("equals(m.a, m.b, m.b)", 128),
        ("m.a == 'short'", 0),
        ("m.a > 5", 0),
        ("getTime() - state.then > 5 * 60", 0),
        ("equals(m.a, 'IBM', 'DELL')", 0),
    ],
)
def test_characters_that_are_compared_are_counted(comparison: str, steps: int) -> None:
    """Two strings of 16 KB took as long as thirty steps and counted as one."""
    policy = Policy(f"if ({comparison}) {{ return NULL; }} return m;")
    arrived = Notification(node="n", seq=1, published_at=0, attributes={"a": LONG, "b": LONG + "y"})
    plain = Run(Arrival({}), {}, {}, 0)
    policy.run(plain)
    made = decide(policy, arrived, {}, {}, now=0)
    assert made.cost.steps - plain.steps == steps
    assert made.cost.steps <= policy.bound.steps
    assert policy.bound.steps - plain.steps >= steps


def test_a_policy_that_compares_much_is_refused_before_it_runs() -> None:
    """Some seventy comparisons of what may be as long are all that fit, in functions called again and again too."""
    compare = "if (m.a < m.b) { return NULL; } "
    assert Policy(compare * 60).bound.steps < 5_000
    twice = "function f(a, b) { x = a < b; y = a > b; return 0; } "
    with pytest.raises(PolicyError, match="at most 5000 are allowed"):
        Policy(twice + "z = f(m.a, m.b); " * 40)
    Policy(twice + "z = f(m.a, m.b); " * 40, limits=PolicyLimits(steps=10_000))


_DEAR = "x = m.a < m.b; " * 60 + "return m;"
_BODY = json.dumps({"a": LONG, "b": LONG + "y"}).encode()


def dear_rig(folder: Path, **settings: int) -> Rig:
    """Return a broker with a device that has a dear policy, and one that has none."""
    rig = Rig(folder, Config(policies=PolicySettings(**settings)))
    phone = rig.client("phone")
    phone.send(Publish("$whimbrel/policy/p", _DEAR.encode()), Publish("$whimbrel/policy", b"p"))
    phone.send(subscribing("ward/#"))
    rig.settle()
    phone.take()
    return rig


@pytest.mark.parametrize("qos", [0, 1])
def test_a_device_waits_when_its_policy_took_too_many_steps(tmp_path: Path, qos: int) -> None:
    """In order, and with nothing lost; whoever has no dear policy is not kept waiting."""
    rig = dear_rig(tmp_path, steps_per_second=5_000)
    phone, other = rig.peers[0], rig.subscriber("other", "ward/#", qos=qos)
    phone.send(subscribing("ward/#", qos=qos))
    rig.settle()
    phone.take()
    monitor = rig.client("monitor")
    for number in range(4):
        monitor.send(publishing("ward/3", _BODY, qos, packet_id=(number + 1) * qos))
    rig.settle()
    heard = [len(phone.payloads())]
    assert (heard, len(other.payloads())) == ([2], 4)  # 4,000 of 5,000 steps each: the second is on credit
    for _ in range(3):
        rig.tick(0.7)
        rig.settle()
        heard.append(len(phone.payloads()))
    assert heard == [2, 1, 0, 1]


def test_the_owner_of_a_policy_that_slows_its_device_is_told(tmp_path: Path) -> None:
    """Or a doctor would think that the ward is quiet. Once a minute, and to the operator too."""
    rig = dear_rig(tmp_path, steps_per_second=5_000)
    phone, monitor = rig.peers[0], rig.client("monitor")
    phone.send(subscribing("$whimbrel/policy/+/slowed"))
    rig.settle()
    phone.take()
    rig.broker.take_notices()
    for minute in range(2):
        for _ in range(4):
            monitor.send(publishing("ward/3", _BODY))
        rig.settle()
        for _ in range(6):
            rig.tick(1)
            rig.settle()
        found = [each for each in phone.taken(Publish) if each.topic == "$whimbrel/policy/p/slowed"]
        (told,) = (json.loads(each.payload) for each in found)
        assert (told["policy"], told["slowed"], told["device"]) == ("p", True, "phone")
        assert told["steps"] > FREE_STEPS
        (notice,) = rig.broker.take_notices()
        assert notice.client == "phone"
        assert f"took {told['steps']:,} steps" in notice.text
        if not minute:
            rig.tick(60)
            rig.settle()


def test_decisions_of_an_older_version_are_found_again(tmp_path: Path) -> None:
    """It counted fewer steps: the log is not wrong for that; any other number is a difference."""
    rig = dear_rig(tmp_path)
    rig.client("monitor").send(publishing("ward/3", _BODY))
    rig.settle()
    rig.sync()
    facts = list(read(rig.folder, "node-1"))
    (decision,) = (fact for fact in facts if isinstance(fact, Decided))
    plain = decision.steps - 60 * 64
    for steps, is_found in ((decision.steps, True), (plain, True), (plain + 1, False)):
        as_written = [replace(fact, steps=steps) if isinstance(fact, Decided) else fact for fact in facts]
        rows = SingleProcess(assume_receipts=False).run(as_written).deliveries
        assert [row.difference is None for row in rows if row.device == "phone"] == [is_found]


@pytest.mark.parametrize("value", ["short", "x" * 1_000, "x" * 5_000])
def test_string_functions_are_budgeted_by_what_they_read(value: str) -> None:
    """The bound is that of the longest string; a device does not wait for characters that its strings do not have."""
    tests = ("fold-case(m.a) == 'x'", "regex(m.a, 'sho.t')", "contains(m.a, 'short', 'y')", "begins-with(m.a, 'y')")
    policy = Policy("".join(f"if ({test}) {{ state.n = 1; }} " for test in tests))
    arrived = Notification(node="n", seq=1, published_at=0, attributes={"a": value})
    made = decide(policy, arrived, {}, {}, now=0)
    run, plain = (Run(Arrival({"a": value}), {}, {}, 0) for _ in range(2))
    policy.run(run)
    interpret(policy.program, plain)
    assert (run.steps, run.spared) == (plain.steps, plain.spared)
    assert 0 < made.steps_needed <= made.cost.steps <= policy.bound.steps
    if value == "short":
        assert made.steps_needed <= FREE_STEPS < made.cost.steps


def test_devices_have_equal_shares_and_cheap_decisions_are_free() -> None:
    """Twenty dear policies together take no more than one alone may."""
    budget = StepBudget(100_000)
    assert all(budget.spend("honest", FREE_STEPS, 0) is None for _ in range(10_000))
    taken = dict.fromkeys(map(str, range(20)), 0)
    until = dict.fromkeys(taken, 0)
    for now in range(0, 10 * SECOND_US, 10_000):
        for device in taken:
            if until[device] <= now:
                until[device] = budget.spend(device, 5_000, now) or 0
                taken[device] += 5_000
    assert 1_000_000 <= sum(taken.values()) <= 1_300_000
    assert len({*taken.values()}) <= 2
    assert StepBudget(0).spend("d", 1 << 40, 0) is None
    budget.spend("last", 5_000, 60 * SECOND_US)
    budget.spend("last", 5_000, 61 * SECOND_US)
    assert len(budget._left) <= 2  # who is gone is forgotten


def test_empty_data_of_an_older_version_is_found_again(tmp_path: Path) -> None:
    """It sent the attributes: its decisions are no differences, and what neither version decides is one."""
    rig = Rig(tmp_path)
    phone = rig.client("phone")
    text = b"x = createMessage(); x.a = 1; setData(x, ''); return x;"
    phone.send(Publish("$whimbrel/policy/p", text), Publish("$whimbrel/policy", b"p"), subscribing("ward/#"))
    rig.settle()
    rig.client("monitor").send(publishing("ward/3", b"{}"))
    rig.settle()
    rig.sync()
    facts = list(read(rig.folder, "node-1"))
    for body, is_found in ((b"", True), (b'{"a":1}', True), (b"other", False)):
        told = {"body_hash": hashlib.sha256(body).digest(), "body_bytes": len(body)}
        as_written = [replace(fact, **told) if isinstance(fact, Decided) else fact for fact in facts]  # type: ignore[arg-type]  # by name
        rows = SingleProcess(assume_receipts=False).run(as_written).deliveries
        assert [row.difference is None for row in rows if row.device == "phone"] == [is_found]
