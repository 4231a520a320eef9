"""Rows of ``ShapeState`` in a stored view; a row's key is its kind and the policy or device to which it belongs.

Rule: the last value of a policy's row is 0. Older views have a failure count there, for all devices and publishers
together; it is read and ignored, since the device and publisher of those failures are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import cbor2

from whimbrel.model.attributes import Limits
from whimbrel.model.bounds import INT32_MAX
from whimbrel.model.typed import from_typed, to_typed
from whimbrel.shape.state import PolicyVersion, ShapeState
from whimbrel.shape.variables import AutomaticVariables, ManualVariables

__all__ = ["KINDS", "Key", "keys", "restore_row", "row_of"]

Key: TypeAlias = tuple[str | int | None, ...]
KINDS = frozenset({"policy", "device", "variables", "failures"})
_LIMITS = Limits(max_bytes=INT32_MAX, max_names=INT32_MAX)


def keys(state: ShapeState) -> Iterable[Key]:
    """Yield the keys of all rows of *state*."""
    yield from (("policy", name) for name in state.policies)
    yield from (("device", device) for device in {*state.devices, *state.choices})
    yield from (("variables", device, policy) for device, policy in state.variables)
    yield from (("failures", device, policy) for device, policy in state.failures)


def row_of(state: ShapeState, key: Key) -> bytes | None:
    """Return the encoded row of *key*; None if *state* has nothing to store there."""
    kind, whose = key[0], str(key[1])
    if kind == "policy":
        version = state.policies.get(whose)
        if version is None:
            return None
        return cbor2.dumps([version.seq, version.owner, version.text, 0])
    if kind == "device":
        automatic, chosen = state.devices.get(whose), state.choices.get(whose)
        if automatic is None:
            return None if chosen is None else cbor2.dumps([chosen])
        reported_at, own, members = automatic.snapshot()
        typed = [[root, to_typed(values)] for root, values in members.items()]
        return cbor2.dumps([chosen, reported_at, to_typed(own), typed])
    if kind == "failures":
        listed = state.failures.list_failures(whose, str(key[2]))
        return cbor2.dumps(listed) if listed else None
    manual = state.variables.get((whose, str(key[2])))
    return None if manual is None else cbor2.dumps(to_typed(manual.values))


def restore_row(state: ShapeState, key: Key, value: bytes) -> None:
    """Restore in *state* one row of a view."""
    kind, whose = key[0], str(key[1])
    row: Any = cbor2.loads(value)
    if kind == "policy":
        seq, owner, text, _ = row
        state.put(PolicyVersion(name=whose, seq=seq, owner=owner, text=text))
    elif kind == "device":
        chosen, *reported = row
        if chosen is not None:
            state.choices[whose] = chosen
        if reported:
            reported_at, own, typed = reported
            members = {root: dict(from_typed(values, limits=_LIMITS)) for root, values in typed}
            own = dict(from_typed(own, limits=_LIMITS))
            state.devices[whose] = AutomaticVariables.of(reported_at, own, members)
    elif kind == "failures":
        state.failures.restore(whose, str(key[2]), [(publisher, count) for publisher, count in row])
    else:
        manual = state.variables[whose, str(key[2])] = ManualVariables()
        manual.values = dict(from_typed(row, limits=_LIMITS))
