"""The states of a subscriber and of a publisher: Figure 4-6 as two tables.

Rule: the tables are the machine. The docs diagram is drawn from them, and a step that is not listed is refused.
Rule: a device may be both at once. Its two machines share one connection to the controller and are told of it together.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

from whimbrel.errors import WhimbrelError

__all__ = ["PUBLISHER", "SUBSCRIBER", "DeviceState", "ImpossibleStepError", "Step", "Table", "diagram", "next_state"]


class DeviceState(Enum):
    """State of a device, as subscriber or as publisher."""

    DISCONNECTED = "disconnected"
    INQUIRY_SCAN = "inquiry scan"
    ACTIVE = "active"
    PARKED = "parked"
    RELEASED = "released"
    PAGE = "page"
    PAGE_SCAN = "page scan"


class Step(Enum):
    """Transitions of a device from one state to another."""

    SHOW = "becomes discoverable"
    HIDE = "hides"
    CONNECT = "connects to the controller"
    HEARD = "is heard and paged by the controller"
    PARK = "no match: is parked"
    WAKE = "is woken"
    RELEASE = "no match and no park: is released, and listens"
    MATCH = "is told of a match"
    PAGED = "is connected to its match, or times out"
    LOSE = "loses the controller"


Table: TypeAlias = Mapping[tuple[DeviceState, Step], DeviceState]

_AT_WORK: Table = {
    (DeviceState.DISCONNECTED, Step.CONNECT): DeviceState.ACTIVE,
    (DeviceState.ACTIVE, Step.PARK): DeviceState.PARKED,
    (DeviceState.PARKED, Step.WAKE): DeviceState.ACTIVE,
    (DeviceState.ACTIVE, Step.LOSE): DeviceState.DISCONNECTED,
    (DeviceState.PARKED, Step.LOSE): DeviceState.DISCONNECTED,
    (DeviceState.ACTIVE, Step.RELEASE): DeviceState.RELEASED,
    (DeviceState.PARKED, Step.RELEASE): DeviceState.RELEASED,
    (DeviceState.RELEASED, Step.CONNECT): DeviceState.ACTIVE,
    (DeviceState.RELEASED, Step.HEARD): DeviceState.ACTIVE,
    (DeviceState.RELEASED, Step.LOSE): DeviceState.DISCONNECTED,
}

SUBSCRIBER: Table = {
    **_AT_WORK,
    (DeviceState.DISCONNECTED, Step.HEARD): DeviceState.ACTIVE,
    (DeviceState.ACTIVE, Step.MATCH): DeviceState.PAGE,
    (DeviceState.PAGE, Step.PAGED): DeviceState.PARKED,
    (DeviceState.PAGE, Step.PARK): DeviceState.PAGE,
    (DeviceState.PAGE, Step.WAKE): DeviceState.PAGE,
    (DeviceState.PAGE, Step.MATCH): DeviceState.PAGE,
    (DeviceState.PAGE, Step.RELEASE): DeviceState.PAGE,
    (DeviceState.PAGE, Step.CONNECT): DeviceState.PAGE,
    (DeviceState.PAGE, Step.HEARD): DeviceState.PAGE,
    (DeviceState.PAGE, Step.LOSE): DeviceState.DISCONNECTED,
}
"""A subscriber. One that has several subscriptions may be told of a second match while it pages for the first."""

PUBLISHER: Table = {
    **_AT_WORK,
    (DeviceState.DISCONNECTED, Step.SHOW): DeviceState.INQUIRY_SCAN,
    (DeviceState.INQUIRY_SCAN, Step.HIDE): DeviceState.DISCONNECTED,
    (DeviceState.INQUIRY_SCAN, Step.HEARD): DeviceState.ACTIVE,
    (DeviceState.INQUIRY_SCAN, Step.CONNECT): DeviceState.ACTIVE,
    (DeviceState.ACTIVE, Step.MATCH): DeviceState.PAGE_SCAN,
    (DeviceState.PAGE_SCAN, Step.PAGED): DeviceState.PARKED,
    (DeviceState.PAGE_SCAN, Step.PARK): DeviceState.PAGE_SCAN,
    (DeviceState.PAGE_SCAN, Step.WAKE): DeviceState.PAGE_SCAN,
    (DeviceState.PAGE_SCAN, Step.MATCH): DeviceState.PAGE_SCAN,
    (DeviceState.PAGE_SCAN, Step.RELEASE): DeviceState.PAGE_SCAN,
    (DeviceState.PAGE_SCAN, Step.CONNECT): DeviceState.PAGE_SCAN,
    (DeviceState.PAGE_SCAN, Step.HEARD): DeviceState.PAGE_SCAN,
    (DeviceState.PAGE_SCAN, Step.LOSE): DeviceState.DISCONNECTED,
}
"""A publisher. It has one publication, so one match at a time; a controller that says otherwise changes nothing."""


class ImpossibleStepError(WhimbrelError):
    """A device cannot take this step in its state. Reaction: a bug of the shell around it; report it."""

    def __init__(self, state: DeviceState, step: Step) -> None:
        super().__init__(state, step)
        self.state, self.step = state, step

    def __str__(self) -> str:
        return f"a device that is {self.state.value} cannot take the step: it {self.step.value}"


def next_state(table: Table, state: DeviceState, step: Step) -> DeviceState:
    """Return the state after *step* from *state*."""
    try:
        return table[state, step]
    except KeyError:
        raise ImpossibleStepError(state, step) from None


def diagram(table: Table, start: DeviceState = DeviceState.DISCONNECTED) -> str:
    """Return *table* as a Mermaid state diagram; steps that lead back to the same state are left out."""
    lines = ["stateDiagram-v2", f"    [*] --> {_word(start)}"]
    lines += [
        f"    {_word(state)} --> {_word(following)}: {step.value.replace(': ', ', ')}"
        for (state, step), following in table.items()
        if state is not following
    ]
    return "\n".join(lines)


def _word(state: DeviceState) -> str:
    return state.value.replace(" ", "_")
