"""Variables: the values that a policy can read about a device (SUBLIM, sections 4 and 6.2).

*Automatic* variables are the fold of the device's reports, *manual* ones the fold of the decisions of its policy.
Rule: a member that a report omits keeps its value; a reported member is replaced as a whole: a set keeps no old items.
Rule: if nothing was sent between two reports, NetworkConnection keeps its value; after a week without a report it is
unknown, as in the pipeline's table ``link_quality``.
Rule: both kinds are bounded: a device that keeps reporting new members loses the least recently reported ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from whimbrel.errors import InvalidValueError
from whimbrel.language.policies.limits import PolicyLimits
from whimbrel.language.policies.operations import is_automatic
from whimbrel.model.attributes import Attributes, Scalar, checked, integer
from whimbrel.model.bounds import utf8_size
from whimbrel.model.device import MEMBER_LIMITS, DeviceState, network_connection
from whimbrel.model.place import Place

__all__ = [
    "DEVICE_BYTES",
    "MAX_LINKS",
    "SILENCE_US",
    "AutomaticVariables",
    "Choices",
    "LinkState",
    "ManualVariables",
    "fit",
    "next_connection",
    "next_link",
    "variable_bytes",
]

SILENCE_US = 7 * 24 * 3_600 * 1_000_000
"""Microseconds without a report after which a device's NetworkConnection is unknown."""
DEVICE_BYTES, _MEMBER_BYTES = 700, 350
"""Approximate memory, in bytes, of a device's own report, and of each other member besides its name and value."""
_NUMBER_BYTES = 8
_LONG = 65_536
"""A length in characters above any of our limits: the exact number of bytes makes no difference."""


def next_connection(before: float | None, received: int | None, sent: int | None) -> float | None:
    """Return NetworkConnection after a report: received / sent, or the value *before* if the report has no ratio."""
    found = network_connection(received, sent)
    return before if found is None else found


class AutomaticVariables:
    """The automatic variables of one device at one node."""

    __slots__ = ("_members", "_own", "_reported_at", "size_bytes", "values")

    def __init__(self) -> None:
        self.size_bytes = DEVICE_BYTES
        """Approximate memory of these variables, in bytes."""
        self._reported_at: int | None = None
        self._own: dict[str, Scalar] = {}
        self._members: dict[str, dict[str, Scalar]] = {}
        """Reported members by the first part of their names; the most recently reported stands at the end."""
        self.values: Attributes = {}

    @classmethod
    def of(
        cls, reported_at: int | None, own: dict[str, Scalar], members: dict[str, dict[str, Scalar]]
    ) -> AutomaticVariables:
        """Return the variables of a ``snapshot``."""
        found = cls()
        found._reported_at, found._own, found._members = reported_at, own, members
        found._put_together()
        found._measure()
        return found

    def snapshot(self) -> tuple[int | None, Attributes, Mapping[str, Attributes]]:
        """Return the time of the last report, the variables that Whimbrel defines, and the others, newest last."""
        return self._reported_at, self._own, self._members

    def take(self, state: DeviceState) -> None:
        """Apply a report."""
        own = self._own
        self._hear(state.reported_at)
        if state.battery is not None:
            own["Battery"] = state.battery
        before = own.get("NetworkConnection")
        connection = next_connection(before if isinstance(before, float) else None, state.received, state.sent)
        if connection is not None:
            own["NetworkConnection"] = connection
        if state.display is not None:
            width, height = state.display.width_px, state.display.height_px
            own |= {"DisplayWidth": width, "DisplayHeight": height, "DisplaySize": integer(width * height)}
        if state.place is not None:
            own |= {"Place.latitude": state.place.latitude, "Place.longitude": state.place.longitude}
        self._take_members(state.members)
        self._put_together()
        self._measure()

    def growth(self, members: Attributes) -> int:
        """Return the approximate memory, in bytes, that a report with these *members* would add."""
        roots = {name.partition(".")[0] for name in members}
        return _members_bytes(members) - sum(_members_bytes(self._members.get(root, {})) for root in roots)

    def _measure(self) -> None:
        self.size_bytes = DEVICE_BYTES + sum(map(_members_bytes, self._members.values()))

    def move(self, place: Place, reported_at: int) -> None:
        """Apply a report that has only the place of the device."""
        self._hear(reported_at)
        self._own |= {"Place.latitude": place.latitude, "Place.longitude": place.longitude}
        self._put_together()

    def _hear(self, reported_at: int) -> None:
        """Record the time of a report; after ``SILENCE_US`` without one, drop NetworkConnection."""
        if self._reported_at is not None and reported_at - self._reported_at >= SILENCE_US:
            self._own.pop("NetworkConnection", None)
        self._reported_at = reported_at

    def _put_together(self) -> None:
        values: dict[str, Scalar] = {}
        for each in self._members.values():
            values |= each
        self.values = values | self._own

    def _take_members(self, members: Attributes) -> None:
        said: dict[str, dict[str, Scalar]] = {}
        for name, value in members.items():
            if not is_automatic(name):  # automatic variables come from their own fields of a report only
                said.setdefault(name.partition(".")[0], {})[name] = value
        for root, values in said.items():
            self._members.pop(root, None)
            self._members[root] = values
        while not self._are_few():
            del self._members[next(iter(self._members))]

    def _are_few(self) -> bool:
        together = {name: value for values in self._members.values() for name, value in values.items()}
        try:
            checked(together, limits=MEMBER_LIMITS)
        except InvalidValueError:
            return not self._members
        return True


class ManualVariables:
    """The manual variables of one device under one policy name."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: dict[str, Scalar] = {}

    @property
    def size_bytes(self) -> int:
        """Approximate memory of these variables, in bytes."""
        return _members_bytes(self.values)

    def take(self, changed: Attributes, removed: tuple[str, ...]) -> None:
        """Apply the variables that a decision set and removed."""
        for name in removed:
            self.values.pop(name, None)
        self.values |= changed


def variable_bytes(name: str, value: Scalar) -> int:
    """Return the bytes that a variable counts towards its device's limit; a very long string counts its characters."""
    size = utf8_size("variable", name)
    if isinstance(value, str):
        return size + (len(value) if len(value) > _LONG else utf8_size("variable", value))
    return size + (len(value) if isinstance(value, bytes) else _NUMBER_BYTES)


def _members_bytes(values: Mapping[str, Scalar]) -> int:
    return sum(_MEMBER_BYTES + variable_bytes(name, value) for name, value in values.items())


def fit(values: Mapping[str, Scalar], changes: Mapping[str, Scalar | None], limits: PolicyLimits) -> bool:
    """Return whether *values* with *changes* (None: removed) are within *limits*."""
    if not changes:
        return True
    after = {**values, **changes}
    kept = {name: value for name, value in after.items() if value is not None}
    if len(kept) > limits.variables:
        return False
    return sum(variable_bytes(name, value) for name, value in kept.items()) <= limits.variable_bytes


# -- links -----------------------------------------------------------------------------------------------------------
#
# The fold behind the table ``link_quality``. The pipeline makes rows of it, and a broker keeps it in its checkpoints,
# so that a pipeline that begins at a checkpoint continues from it.

MAX_LINKS = 100_000
"""Most devices whose link state a broker keeps: those that reported last. After a cut, the first report of any other
device makes no row."""


class LinkState(NamedTuple):
    """Link state of a device after its last report."""

    at: int
    """Time of the report, in microseconds."""
    connection: float | None
    """Ratio received / sent of the last report that had one; None if no report had."""


def next_link(
    before: LinkState | None, at: int, received: int | None, sent: int | None
) -> tuple[LinkState | None, LinkState]:
    """Return the state before a report, None if it is older than ``SILENCE_US``, and the state after it."""
    if before is not None and at - before.at >= SILENCE_US:
        before = None
    return before, LinkState(at, next_connection(None if before is None else before.connection, received, sent))


class Choices(dict[str, str]):
    """The policy that each device chose, with a count of devices per policy."""

    def __init__(self) -> None:
        super().__init__()
        self._devices: Counter[str] = Counter()

    def devices(self, policy: str) -> int:
        """Return how many devices chose *policy*."""
        return self._devices[policy]

    def __setitem__(self, device: str, policy: str) -> None:
        self.pop(device, None)
        super().__setitem__(device, policy)
        self._devices[policy] += 1

    def pop(self, device: str, *otherwise: Any) -> Any:  # noqa: ANN401 # as dict has it
        """Remove the choice of a device and return it, like ``dict.pop``."""
        if device in self:
            before = self[device]
            self._devices[before] -= 1
            if not self._devices[before]:
                del self._devices[before]
        return super().pop(device, *otherwise)
