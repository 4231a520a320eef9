"""The state of policies: the fold of reports, policies, choices and decisions."""

from __future__ import annotations

import cbor2
import pytest

from whimbrel.errors import PolicyError
from whimbrel.language.policies.codes import PolicyCode
from whimbrel.language.policies.limits import PolicyLimits
from whimbrel.model.attributes import Int64, Scalar
from whimbrel.model.device import DeviceState
from whimbrel.model.facts import Decided, Fact, Outcome, PolicyChange, PolicyChanged, Reported
from whimbrel.model.notification import NotificationId
from whimbrel.shape.agents import Agents, admit
from whimbrel.shape.faults import Fault
from whimbrel.shape.rows import keys, restore_row, row_of
from whimbrel.shape.state import FAILURES, MAX_PUBLISHERS, ShapeState
from whimbrel.shape.transforms import Work
from whimbrel.shape.variables import fit
from whimbrel.shape.work_queue import WorkQueue


def reported(report: str, sent: int | None = None) -> Reported:
    """Return a report of the device d."""
    return Reported(node="n", seq=1, state=DeviceState.from_report(report, device="d", now=0, sent=sent))


def put(name: str, seq: int, text: str = "return m;") -> PolicyChanged:
    """Return a policy that is put."""
    return PolicyChanged(node="n", seq=seq, changed_at=0, change=PolicyChange.PUT, owner="o", name=name, text=text)


def chose(name: str | None) -> PolicyChanged:
    """Return the choice of the device d."""
    return PolicyChanged(node="n", seq=1, changed_at=0, change=PolicyChange.CHOSEN, owner="o", name=name, device="d")


def removed(name: str) -> PolicyChanged:
    """Return a policy that is removed."""
    return PolicyChanged(node="n", seq=1, changed_at=0, change=PolicyChange.REMOVED, owner="o", name=name)


def decided(
    policy: str, policy_seq: int, fault: Fault | None = None, publisher: str | None = "m", **changed: Scalar
) -> Decided:
    """Return a decision about the device d that withholds."""
    return Decided(
        node="n",
        seq=1,
        decided_at=0,
        session="s",
        device="d",
        notification=NotificationId("n", 1),
        policy_seq=policy_seq,
        policy=policy,
        outcome=Outcome.WITHHELD,
        reason=None if fault is None else fault.value,
        changed=changed,
        publisher=publisher,
    )


def test_automatic_variables_are_the_fold_of_reports() -> None:
    """What is not said stays; a member that is said replaces all of itself."""
    state = ShapeState()
    assert state.automatic("d") == {}
    state.apply(reported('{"battery": 0.5, "display": {"width": 240, "height": 320}, "place": "47,8", "mine": ["a"]}'))
    state.apply(reported('{"battery": 0.4, "mine": ["b"], "Battery": 1, "Place": 5, "net": {"kind": "4g"}}'))
    assert state.automatic("d") == {
        "Battery": 0.4,
        "DisplayWidth": 240,
        "DisplayHeight": 320,
        "DisplaySize": 76_800,
        "Place.latitude": 47.0,
        "Place.longitude": 8.0,
        "mine": 1,
        "mine.b": 1,
        "net.kind": "4g",
    }


def test_nothing_sent_keeps_the_connection() -> None:
    """Section 6.2: received / sent of the interval, at most 1; an interval without any says nothing."""
    state, seen = ShapeState(), []
    for received, sent in ((3, None), (9, 10), (0, 0), (None, 5), (12, 10), (1, 4)):
        state.apply(reported("{}" if received is None else f'{{"received": {received}}}', sent))
        seen.append(state.automatic("d").get("NetworkConnection"))
    assert seen == [None, 0.9, 0.9, 0.9, 1.0, 0.25]


def test_members_are_bounded_over_all_reports() -> None:
    """A device that reports ever new names loses the oldest."""
    state = ShapeState()
    for number in range(40):
        state.apply(reported(f'{{"a{number}": {list(range(50))}}}'))
    names = state.automatic("d")
    assert len(names) <= 256
    assert "a39.49" in names
    assert "a0" not in names


def test_manual_variables_belong_to_a_device_and_a_name() -> None:
    """A new version keeps them; removing the policy, or choosing another, clears them."""
    state = ShapeState()
    state.apply(put("p", 1))
    state.apply(chose("p"))
    state.apply(decided("p", 1, n=1))
    state.apply(put("p", 2))
    assert (state.manual("d", "p"), state.chosen("d")) == ({"n": 1}, "p")
    state.apply(chose("q"))
    assert (state.manual("d", "p"), state.chosen("d")) == ({}, "q")
    state.apply(decided("q", 1, n=2))
    state.apply(removed("q"))
    assert state.manual("d", "q") == {}
    state.apply(chose(None))
    assert state.chosen("d") is None


def test_a_policy_that_keeps_failing_is_suspended_until_it_is_put_anew() -> None:
    """By its own faults in a row; what arrived unreadable, or took too long, is not held against it."""
    state = ShapeState()
    state.apply(put("p", 1))
    for _ in range(FAILURES - 1):
        state.apply(decided("p", 1, Fault.VARIABLES))
    for fault in (Fault.UNREADABLE, Fault.PIXELS, Fault.TIME_OUT, Fault.DECODER):
        state.apply(decided("p", 1, fault))
    assert not state.is_suspended("p", "d", "m")
    state.apply(decided("p", 1, Fault.ATTRIBUTES))
    assert state.is_suspended("p", "d", "m")
    assert not state.is_suspended("p", "d", "other")
    assert state.has_suspended("p")
    state.apply(put("p", 9))
    state.apply(decided("p", 1, Fault.VARIABLES))  # of the version before
    assert not state.has_suspended("p")
    for _ in range(2 * FAILURES):
        state.apply(decided("p", 9, Fault.VARIABLES))
        state.apply(decided("p", 9))
        state.apply(decided("p", 9, Fault.VARIABLES, publisher=None))  # of an older log: nobody knows who published
    assert not state.has_suspended("p")


def test_failures_of_a_device_are_bounded_and_end_with_it() -> None:
    """A client that comes under ever new names fills no memory; who failed first is forgotten first."""
    state = ShapeState()
    state.apply(put("p", 1))
    for _ in range(FAILURES):
        state.apply(decided("p", 1, Fault.VARIABLES, publisher="first"))
    for number in range(MAX_PUBLISHERS):
        assert state.has_suspended("p")
        state.apply(decided("p", 1, Fault.VARIABLES, publisher=f"m{number}"))
    assert not state.has_suspended("p")
    assert len(state.failures.list_failures("d", "p")) == MAX_PUBLISHERS
    state.forget("d")
    assert not [*state.failures]


def test_variables_are_bounded_in_number_and_bytes() -> None:
    """What is removed makes room."""
    limits = PolicyLimits(variables=2, variable_bytes=20)
    assert fit({"a": 1}, {"b": 2}, limits)
    assert not fit({"a": 1, "b": 1}, {"c": 2}, limits)
    assert fit({"a": 1, "b": 1}, {"c": 2, "a": None}, limits)
    assert not fit({}, {"a": "é" * 10}, limits)


def test_compress_is_refused_where_it_cannot_be_done() -> None:
    """When the policy is put, not when the first picture comes."""
    text = "return compress(m, 1, 1, 1);"
    assert admit(text, has_images=True).needs_images
    with pytest.raises(PolicyError, match="pip install 'whimbrel\\[images\\]'") as refused:
        admit(text, has_images=False)
    assert (refused.value.code, refused.value.column) == (PolicyCode.MISSING, 8)
    assert not admit("return m;", has_images=False).needs_images


def test_agents_are_compiled_once_and_run_whatever_the_limits_are_now() -> None:
    """A policy that was accepted once must be replayed; one that cannot be read is as good as none."""
    agents = Agents(most=2)
    costly = "x = compress(m, 1, 1, 1);" * 9
    assert agents.of(costly) is agents.of(costly) is not None
    assert agents.of("no policy") is None
    assert agents.of("return m;") is not None


def test_devices_take_turns_and_equal_work_waits_once() -> None:
    """One with much to do does not delay the others, and what is too much is refused."""
    queue = WorkQueue(max_jobs=4, max_bytes=100)
    for device, body in (("d", b"1"), ("d", b"2"), ("e", b"3"), ("e", b"1")):
        assert queue.offer(device, body, Work(body, ()))
    assert queue.jobs == 3
    assert not queue.offer("f", b"big", Work(bytes(98), ()))
    assert queue.offer("f", b"4", Work(b"4", ()))
    assert not queue.offer("f", b"5", Work(b"5", ()))
    taken = [queue.take() for _ in range(5)]
    assert [each and each[0] for each in taken] == [b"1", b"3", b"4", b"2", None]
    assert (queue.jobs, queue.bytes) == (0, 0)
    queue.offer("d", b"1", Work(b"1", ()))
    assert queue.take() is None  # it still runs
    queue.done(b"1")
    queue.offer("d", b"1", Work(b"1", ()))
    assert queue.take() is not None


def test_the_rows_of_a_view_bring_everything_back() -> None:
    """A broker that starts from its view decides as the one that wrote it would have."""
    state = ShapeState()
    report = '{"battery": 0.5, "display": {"width": 240, "height": 320}, "mine": ["a", 7], "far": 5000000000}'
    facts: list[Fact] = [put("p", 2), put("q", 3), reported(report, sent=3), chose("p")]
    facts += [decided("p", 2, t=1.0, n=Int64(3))]
    for fact in [*facts, decided("p", 2, Fault.VARIABLES), removed("q")]:
        state.apply(fact)
    again = ShapeState()
    for key in keys(state):
        value = row_of(state, key)
        assert value is not None
        restore_row(again, key, value)
    assert (again.policies, again.choices) == (state.policies, {"d": "p"})
    assert again.failures.list_failures("d", "p") == state.failures.list_failures("d", "p") == [("m", 1)]
    restore_row(again, ("policy", "old"), cbor2.dumps([7, "o", "return m;", 12]))  # as older views have it
    assert (again.policies["old"].seq, again.has_suspended("old")) == (7, False)
    assert again.automatic("d") == state.automatic("d")
    assert again.manual("d", "p") == {"t": 1.0, "n": Int64(3)}
    assert type(again.manual("d", "p")["n"]) is Int64
    assert state.touched >= {*keys(state), ("policy", "q")}
    for each in (state, again):
        each.apply(reported('{"mine": ["b"]}'))
    assert again.automatic("d") == state.automatic("d")
