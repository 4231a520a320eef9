"""State: everything that policies depend on, as the fold of a node's log: policies, choices, reports and decisions.

Rule: nothing else changes it, so the broker, a replay after a crash and the pipeline have the same state at a seq.
Rule: manual variables belong to a device and the name of a policy. They go with the policy when it is removed, and
when the device chooses another; a new version of the same name keeps them.
Rule: a policy that failed ``FAILURES`` times in a row by its own fault is suspended: its devices get what they would
without a policy, and its owner is told, until a new version is put.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whimbrel.model.attributes import NO_ATTRIBUTES, Attributes
from whimbrel.model.facts import Decided, Fact, PolicyChange, PolicyChanged, Reported
from whimbrel.model.place import Place
from whimbrel.shape.faults import Fault
from whimbrel.shape.variables import DEVICE_BYTES, AutomaticVariables, Choices, ManualVariables

__all__ = ["FAILURES", "PolicyVersion", "ShapeState", "policy_bytes"]

FAILURES = 10
_CHOICE_BYTES, _POLICY_BYTES, _CHARACTER_BYTES = 250, 2_000, 24
"""Memory of a device's choice, and of a policy and each character of it: it is there as text and compiled."""
_BLAMED = frozenset(fault.value for fault in Fault if fault.is_of_policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """A policy in force; *seq* is its version."""

    name: str
    seq: int
    owner: str
    text: str


def policy_bytes(text: str) -> int:
    """Return how much memory a policy takes, about."""
    return _POLICY_BYTES + _CHARACTER_BYTES * len(text)


class ShapeState:
    """The state of one node's policies and devices."""

    def __init__(self) -> None:
        self.policies: dict[str, PolicyVersion] = {}
        self.choices = Choices()
        self.devices: dict[str, AutomaticVariables] = {}
        self.variables: dict[tuple[str, str], ManualVariables] = {}
        self.failures: dict[str, int] = {}
        """By policy, how often it failed in a row by its own fault."""
        self.size_bytes = 0
        """How much memory all of it takes, about."""
        self.touched: set[tuple[str, ...]] = set()
        """The keys of rows that have changed, for a view that follows (``rows``)."""

    def apply(self, fact: Fact) -> None:
        """Take the next fact in; those of other tables change nothing."""
        if isinstance(fact, Decided):
            self._apply_decision(fact)
        elif isinstance(fact, Reported):
            self.touched.add(("device", fact.state.device))
            automatic = self._device(fact.state.device)
            before = automatic.size_bytes
            automatic.take(fact.state)
            self.size_bytes += automatic.size_bytes - before
        elif isinstance(fact, PolicyChanged):
            self._apply_policy(fact)

    def moved(self, device: str, place: Place, reported_at: int) -> None:
        """Take in a report that only says where a device is."""
        self.touched.add(("device", device))
        self._device(device).move(place, reported_at)

    def _device(self, device: str) -> AutomaticVariables:
        found = self.devices.get(device)
        if found is None:
            found = self.devices[device] = AutomaticVariables()
            self.size_bytes += found.size_bytes
        return found

    def growth(self, device: str, members: Attributes) -> int:
        """Return how much more memory a report of *device* with these *members* would take, about."""
        found = self.devices.get(device)
        return AutomaticVariables().growth(members) + DEVICE_BYTES if found is None else found.growth(members)

    def measure(self) -> None:
        """Find out how much memory all of it takes: rows were restored."""
        self.size_bytes = sum(each.size_bytes for each in self.devices.values())
        self.size_bytes += sum(each.size_bytes for each in self.variables.values())
        self.size_bytes += _CHOICE_BYTES * len(self.choices)
        self.size_bytes += sum(policy_bytes(version.text) for version in self.policies.values())

    def automatic(self, device: str) -> Attributes:
        """Return the automatic variables of *device*; those of a device that never reported are none."""
        found = self.devices.get(device)
        return NO_ATTRIBUTES if found is None else found.values

    def manual(self, device: str, policy: str) -> Attributes:
        """Return the manual variables of *device* under the name *policy*."""
        found = self.variables.get((device, policy))
        return NO_ATTRIBUTES if found is None else found.values

    def chosen(self, device: str) -> str | None:
        """Return the name of the policy that *device* chose as its own."""
        return self.choices.get(device)

    def is_suspended(self, policy: str) -> bool:
        """Tell whether *policy* failed too often in a row."""
        return self.failures.get(policy, 0) >= FAILURES

    def in_force(self, policy: str | None) -> PolicyVersion | None:
        """Return the version of *policy* to run; None if there is none, or if it is suspended."""
        return None if policy is None or self.is_suspended(policy) else self.policies.get(policy)

    def asked(self, device: str, named: Sequence[str | None]) -> tuple[PolicyVersion | None, ...]:
        """Return the policies that decide about a hand-over, in order; None stands for one that sends what arrived.

        That of the device, if it is in force; else those *named* by the subscriptions, each once. Of one that is not in
        force, because it was never put, was removed, or is suspended, nothing is asked. Nothing is returned if none is.
        """
        own = self.in_force(self.chosen(device))
        if own is not None:
            return (own,)
        found = dict.fromkeys(self.in_force(name) for name in named)
        return tuple(found) if any(version is not None for version in found) else ()

    def forget(self, device: str) -> None:
        """Forget a device that is gone for good."""
        self.touched.add(("device", device))
        gone = self.devices.pop(device, None)
        self.size_bytes -= 0 if gone is None else gone.size_bytes
        self._unchoose(device)
        for key in [key for key in self.variables if key[0] == device]:
            self._drop_variables(key)

    def _apply_decision(self, fact: Decided) -> None:
        self.change_variables(fact.device, fact.policy, fact.changed, fact.removed)
        version = self.policies.get(fact.policy)
        if version is not None and version.seq == fact.policy_seq:  # the failures of an older one are not this one's
            self.count_failure(fact.policy, fact.reason)

    def change_variables(self, device: str, policy: str, changed: Attributes, removed: tuple[str, ...]) -> None:
        """Take in the manual variables that a decision set and removed."""
        if changed or removed:
            key = device, policy
            self.touched.add(("variables", *key))
            manual = self.variables.setdefault(key, ManualVariables())
            before = manual.size_bytes
            manual.take(changed, removed)
            self.size_bytes += manual.size_bytes - before
            if not manual.values:
                del self.variables[key]

    def count_failure(self, policy: str, reason: str | None) -> None:
        """Take in that a decision of the *policy* in force failed for *reason*, or did not."""
        if reason in _BLAMED:
            self.touched.add(("policy", policy))
            self.failures[policy] = self.failures.get(policy, 0) + 1
        elif reason is None and self.failures.pop(policy, 0):
            self.touched.add(("policy", policy))

    def _drop_variables(self, key: tuple[str, str]) -> None:
        gone = self.variables.pop(key, None)
        if gone is not None:
            self.size_bytes -= gone.size_bytes
            self.touched.add(("variables", *key))

    def _unchoose(self, device: str) -> str | None:
        """Forget what a device has chosen, and return it."""
        before = self.choices.pop(device, None)
        self.size_bytes -= 0 if before is None else _CHOICE_BYTES
        return before

    def _drop_policy(self, name: str) -> None:
        gone = self.policies.pop(name, None)
        self.size_bytes -= 0 if gone is None else policy_bytes(gone.text)

    def _apply_policy(self, fact: PolicyChanged) -> None:
        self.touched.add(("policy", fact.name or "") if fact.device is None else ("device", fact.device))
        match fact.change:
            case PolicyChange.PUT:
                assert fact.name is not None
                assert fact.text is not None
                version = PolicyVersion(name=fact.name, seq=fact.seq, owner=fact.owner, text=fact.text)
                self._drop_policy(fact.name)
                self.policies[fact.name] = version
                self.size_bytes += policy_bytes(fact.text)
                self.failures.pop(fact.name, None)
            case PolicyChange.REMOVED:
                assert fact.name is not None
                self._drop_policy(fact.name)
                self.failures.pop(fact.name, None)
                for key in [key for key in self.variables if key[1] == fact.name]:
                    self._drop_variables(key)
            case PolicyChange.CHOSEN:
                assert fact.device is not None
                before = self._unchoose(fact.device)
                if before is not None and before != fact.name:
                    self._drop_variables((fact.device, before))
                if fact.name is not None:
                    self.choices[fact.device] = fact.name
                    self.size_bytes += _CHOICE_BYTES
