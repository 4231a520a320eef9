"""Variables: what a policy may read of a device (SUBLIM, sections 4 and 6.2).

*Automatic* variables are the fold of the device's reports, *manual* ones the fold of the decisions of its policy.
Rule: what a report does not say stays as it was. A member that it does say replaces all of that member: a set that is
reported anew has no old items.
Rule: where nothing was sent between two reports, NetworkConnection stays as it was; after a silence of a week it is not
known, as in the pipeline's table ``link_quality``.
Rule: both are bounded: a device that reports ever new members loses those that it has not said for longest.
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
    "MOST_LINKS",
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
"""A device that was silent for so long begins its NetworkConnection anew."""
DEVICE_BYTES, _MEMBER_BYTES = 700, 350
"""Memory of what a device reported of itself, and of each other member of its reports beside name and value, about."""
_NUMBER_BYTES = 8
_LONG = 65_536
"""Longer than any limit of ours: how many bytes it has makes no difference."""


def next_connection(before: float | None, received: int | None, sent: int | None) -> float | None:
    """Return NetworkConnection after a report: received / sent, or what it was *before* if that says nothing."""
    found = network_connection(received, sent)
    return before if found is None else found


class AutomaticVariables:
    """The automatic variables of one device at one node."""

    __slots__ = ("_members", "_own", "_reported_at", "size_bytes", "values")

    def __init__(self) -> None:
        self.size_bytes = DEVICE_BYTES
        """How much memory it takes, about."""
        self._reported_at: int | None = None
        self._own: dict[str, Scalar] = {}
        self._members: dict[str, dict[str, Scalar]] = {}
        """By the first part of their names, the one said last at the end."""
        self.values: Attributes = {}

    @classmethod
    def of(
        cls, reported_at: int | None, own: dict[str, Scalar], members: dict[str, dict[str, Scalar]]
    ) -> AutomaticVariables:
        """Return those that a ``snapshot`` has."""
        found = cls()
        found._reported_at, found._own, found._members = reported_at, own, members
        found._put_together()
        found._measure()
        return found

    def snapshot(self) -> tuple[int | None, Attributes, Mapping[str, Attributes]]:
        """Return when the last report came, what Whimbrel knows by name, and the other members, the last said last."""
        return self._reported_at, self._own, self._members

    def take(self, state: DeviceState) -> None:
        """Take a report in."""
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
        """Return how much more memory a report with these *members* would take, about."""
        roots = {name.partition(".")[0] for name in members}
        return _members_bytes(members) - sum(_members_bytes(self._members.get(root, {})) for root in roots)

    def _measure(self) -> None:
        self.size_bytes = DEVICE_BYTES + sum(map(_members_bytes, self._members.values()))

    def move(self, place: Place, reported_at: int) -> None:
        """Take a report in that only says where the device is."""
        self._hear(reported_at)
        self._own |= {"Place.latitude": place.latitude, "Place.longitude": place.longitude}
        self._put_together()

    def _hear(self, reported_at: int) -> None:
        """Take in when a report came: after a long silence the connection is not known any more."""
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
            if not is_automatic(name):  # those are said in their own way, and no other is believed
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
        """How much memory they take, about."""
        return _members_bytes(self.values)

    def take(self, changed: Attributes, removed: tuple[str, ...]) -> None:
        """Take in what a decision set and removed."""
        for name in removed:
            self.values.pop(name, None)
        self.values |= changed


def variable_bytes(name: str, value: Scalar) -> int:
    """Return what a variable counts towards its device's bytes; of a very long string its characters, unencoded."""
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
# so that a pipeline that begins at one goes on with it.

MOST_LINKS = 100_000
"""A broker keeps the state of so many devices, those that reported last. One beyond them begins anew after a cut: its
first report then makes no row."""


class LinkState(NamedTuple):
    """A device at its last report."""

    at: int
    """When that was, in microseconds."""
    connection: float | None
    """received / sent, by the last report that said so; None if none has."""


def next_link(
    before: LinkState | None, at: int, received: int | None, sent: int | None
) -> tuple[LinkState | None, LinkState]:
    """Return the state that a report follows, None after a long silence, and the state after it."""
    if before is not None and at - before.at >= SILENCE_US:
        before = None
    return before, LinkState(at, next_connection(None if before is None else before.connection, received, sent))


class Choices(dict[str, str]):
    """The policy that each device chose, by device; how many chose one is known without a look at all devices."""

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
        """Let a device have chosen none; return what it had chosen."""
        if device in self:
            before = self[device]
            self._devices[before] -= 1
            if not self._devices[before]:
                del self._devices[before]
        return super().pop(device, *otherwise)
