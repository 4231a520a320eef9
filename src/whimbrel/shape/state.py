"""State of policies and devices, folded from a node's log: policies, devices' choices, reports and decisions.

Rule: only facts of the log change it, so the broker, a replay after a crash and the pipeline have equal state at a seq.
Rule: manual variables belong to a device and the name of a policy. They go with the policy when it is removed, and
when the device chooses another; a new version of the same name keeps them.
Rule: a policy that failed ``FAILURES`` times in a row by its own fault, with what one publisher sent to one device, is
suspended for these two alone, and its owner is told, until a new version is put. A suspended policy withholds, unless
its text calls ``sendWhenSuspended()``.
Rule: decisions without a publisher (older logs) are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from whimbrel.model.attributes import NO_ATTRIBUTES, Attributes
from whimbrel.model.facts import Decided, Fact, PolicyChange, PolicyChanged, Reported
from whimbrel.model.place import Place
from whimbrel.shape.faults import Fault
from whimbrel.shape.variables import DEVICE_BYTES, AutomaticVariables, Choices, ManualVariables

__all__ = ["FAILURES", "MAX_PUBLISHERS", "Failures", "PolicyVersion", "ShapeState", "policy_bytes"]

FAILURES = 10
"""Failures in a row after which a policy is suspended for a device and publisher."""
MAX_PUBLISHERS = 64
"""Most publishers with a failure count, per device and policy; for a forgotten publisher the count restarts at 0."""
_CHOICE_BYTES, _POLICY_BYTES, _CHARACTER_BYTES, _FAILURE_BYTES = 250, 2_000, 24, 300
"""Approximate memory in bytes of a device's choice, of a policy, of each character of its text (kept as text and
compiled), and of the failures for one publisher."""
_BLAMED = frozenset(fault.value for fault in Fault if fault.is_of_policy)


class Failures:
    """Failures in a row per device, policy and publisher; an unknown publisher is None."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], dict[str | None, int]] = {}
        self._size = 0
        self._suspended: Counter[str] = Counter()
        """Pairs of device and publisher for which a policy is suspended, counted per policy."""

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._counts)

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Failures) and self._counts == other._counts

    __hash__ = None  # type: ignore[assignment]  # it changes

    def add(self, device: str, policy: str, publisher: str | None) -> None:
        """Count one more failure."""
        counts = self._counts.setdefault((device, policy), {})
        self._size += publisher not in counts
        count = counts.pop(publisher, 0) + 1
        counts[publisher] = count  # the one that failed last stands at the end
        if count == FAILURES:
            self._suspended[policy] += 1
        if len(counts) > MAX_PUBLISHERS:
            self._forget(policy, counts.pop(next(iter(counts))))

    def end(self, device: str, policy: str, publisher: str | None) -> bool:
        """Reset the failures in a row after a success; return whether there were any."""
        if not self._counts:
            return False
        counts = self._counts.get((device, policy))
        if counts is None or publisher not in counts:
            return False
        self._forget(policy, counts.pop(publisher))
        if not counts:
            del self._counts[device, policy]
        return True

    def drop(self, device: str, policy: str) -> None:
        """Forget all failures of *policy* for *device*."""
        for count in self._counts.pop((device, policy), {}).values():
            self._forget(policy, count)

    def are_enough(self, device: str, policy: str, publisher: str | None) -> bool:
        """Return whether *policy* failed so often that it is suspended for this device and publisher."""
        if not self._suspended:
            return False
        counts = self._counts.get((device, policy))
        return counts is not None and counts.get(publisher, 0) >= FAILURES

    def has_suspended(self, policy: str) -> bool:
        """Return whether *policy* is suspended for any device and publisher."""
        return policy in self._suspended

    def list_failures(self, device: str, policy: str) -> list[tuple[str | None, int]]:
        """Return each publisher and its number of failures; the one that failed last stands at the end."""
        return [*self._counts.get((device, policy), {}).items()]

    def restore(self, device: str, policy: str, listed: list[tuple[str | None, int]]) -> None:
        """Restore the counts in *listed*, which the method ``list_failures`` returned."""
        self._counts[device, policy] = dict(listed)
        self._size += len(listed)
        suspended = sum(count >= FAILURES for _, count in listed)
        if suspended:
            self._suspended[policy] += suspended

    def _forget(self, policy: str, count: int) -> None:
        self._size -= 1
        if count >= FAILURES:
            self._suspended[policy] -= 1
            if not self._suspended[policy]:
                del self._suspended[policy]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """A policy in force; *seq* is its version."""

    name: str
    seq: int
    owner: str
    text: str


def policy_bytes(text: str) -> int:
    """Return the approximate memory of a policy, in bytes."""
    return _POLICY_BYTES + _CHARACTER_BYTES * len(text)


class ShapeState:
    """The state of one node's policies and devices."""

    def __init__(self) -> None:
        self.policies: dict[str, PolicyVersion] = {}
        self.choices = Choices()
        self.devices: dict[str, AutomaticVariables] = {}
        self.variables: dict[tuple[str, str], ManualVariables] = {}
        self.failures = Failures()
        self.size_bytes = 0
        """Approximate memory of the whole state, in bytes."""
        self.may_compress = False
        """Whether any policy that was put contains ``compress``, so that worker processes should be ready."""
        self.touched: set[tuple[str, ...]] = set()
        """Keys of the rows that changed, for the stored view (``rows``)."""

    def apply(self, fact: Fact) -> None:
        """Apply the next fact of the log; facts of other tables change nothing."""
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

    def on_place(self, device: str, place: Place, reported_at: int) -> None:
        """Apply a report that has only the place of *device*."""
        self.touched.add(("device", device))
        self._device(device).move(place, reported_at)

    def _device(self, device: str) -> AutomaticVariables:
        found = self.devices.get(device)
        if found is None:
            found = self.devices[device] = AutomaticVariables()
            self.size_bytes += found.size_bytes
        return found

    def growth(self, device: str, members: Attributes) -> int:
        """Return the approximate memory, in bytes, that a report of *device* with these *members* would add."""
        found = self.devices.get(device)
        return AutomaticVariables().growth(members) + DEVICE_BYTES if found is None else found.growth(members)

    def measure(self) -> None:
        """Compute *size_bytes* again, after rows were restored."""
        self.size_bytes = sum(each.size_bytes for each in self.devices.values())
        self.size_bytes += sum(each.size_bytes for each in self.variables.values())
        self.size_bytes += _CHOICE_BYTES * len(self.choices) + _FAILURE_BYTES * len(self.failures)
        self.size_bytes += sum(policy_bytes(version.text) for version in self.policies.values())

    def automatic(self, device: str) -> Attributes:
        """Return the automatic variables of *device*, empty if it never reported."""
        found = self.devices.get(device)
        return NO_ATTRIBUTES if found is None else found.values

    def manual(self, device: str, policy: str) -> Attributes:
        """Return the manual variables of *device* under the name *policy*."""
        found = self.variables.get((device, policy))
        return NO_ATTRIBUTES if found is None else found.values

    def chosen(self, device: str) -> str | None:
        """Return the name of the policy that *device* chose as its own."""
        return self.choices.get(device)

    def is_suspended(self, policy: str, device: str, publisher: str | None) -> bool:
        """Return whether *policy* failed too often in a row with what *publisher* sent to *device*."""
        return self.failures.are_enough(device, policy, publisher)

    def has_suspended(self, policy: str) -> bool:
        """Return whether *policy* is suspended for any device and publisher."""
        return self.failures.has_suspended(policy)

    def in_force(self, policy: str | None) -> PolicyVersion | None:
        """Return the version of *policy* in force; None if there is none."""
        return None if policy is None else self.policies.get(policy)

    def find_policies(self, device: str, named: Sequence[str | None]) -> tuple[PolicyVersion | None, ...]:
        """Return the policies that decide about a hand-over, in order; None in their place sends it unchanged.

        They are the policy that the device chose, if it is in force; else those *named* by subscriptions, each once. A
        named policy that is not in force (never put, or removed) counts as None. Empty if no policy is in force at all.
        """
        own = self.in_force(self.chosen(device))
        if own is not None:
            return (own,)
        found = dict.fromkeys(self.in_force(name) for name in named)
        return tuple(found) if any(version is not None for version in found) else ()

    def put(self, version: PolicyVersion) -> None:
        """Put *version* in force, in place of an older version of the same name."""
        self._drop_policy(version.name)
        self.policies[version.name] = version
        self.size_bytes += policy_bytes(version.text)
        self.may_compress = self.may_compress or "compress" in version.text

    def forget(self, device: str) -> None:
        """Remove all state of a device that was removed for good."""
        self.touched.add(("device", device))
        gone = self.devices.pop(device, None)
        self.size_bytes -= 0 if gone is None else gone.size_bytes
        self._unchoose(device)
        for key in [key for key in self.variables if key[0] == device]:
            self._drop_variables(key)
        for key in [key for key in self.failures if key[0] == device]:
            self._drop_failures(key)

    def _apply_decision(self, fact: Decided) -> None:
        self.change_variables(fact.device, fact.policy, fact.changed, fact.removed)
        version = self.policies.get(fact.policy)
        if version is None or version.seq != fact.policy_seq or fact.publisher is None:
            return  # the failures of an older version are not this one's
        self.count_failure(fact.policy, fact.device, fact.publisher, fact.reason)

    def change_variables(self, device: str, policy: str, changed: Attributes, removed: tuple[str, ...]) -> None:
        """Apply the manual variables that a decision set and removed."""
        if changed or removed:
            key = device, policy
            self.touched.add(("variables", *key))
            manual = self.variables.setdefault(key, ManualVariables())
            before = manual.size_bytes
            manual.take(changed, removed)
            self.size_bytes += manual.size_bytes - before
            if not manual.values:
                del self.variables[key]

    def count_failure(self, policy: str, device: str, publisher: str | None, reason: str | None) -> None:
        """Count a failure of the *policy* in force for *reason*; None is a success, which resets the count."""
        if reason is None:
            if self.failures.end(device, policy, publisher):
                self.touched.add(("failures", device, policy))
                self.size_bytes -= _FAILURE_BYTES
        elif reason in _BLAMED:
            before = len(self.failures)
            self.touched.add(("failures", device, policy))
            self.failures.add(device, policy, publisher)
            self.size_bytes += _FAILURE_BYTES * (len(self.failures) - before)

    def _drop_variables(self, key: tuple[str, str]) -> None:
        gone = self.variables.pop(key, None)
        if gone is not None:
            self.size_bytes -= gone.size_bytes
            self.touched.add(("variables", *key))

    def _drop_failures(self, key: tuple[str, str]) -> None:
        before = len(self.failures)
        self.failures.drop(*key)
        self.size_bytes += _FAILURE_BYTES * (len(self.failures) - before)
        self.touched.add(("failures", *key))

    def _drop_all_failures(self, policy: str) -> None:
        for key in [key for key in self.failures if key[1] == policy]:
            self._drop_failures(key)

    def _unchoose(self, device: str) -> str | None:
        """Remove the choice of a device, and return it."""
        before: str | None = self.choices.pop(device, None)
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
                self.put(PolicyVersion(name=fact.name, seq=fact.seq, owner=fact.owner, text=fact.text))
                self._drop_all_failures(fact.name)
            case PolicyChange.REMOVED:
                assert fact.name is not None
                self._drop_policy(fact.name)
                self._drop_all_failures(fact.name)
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
