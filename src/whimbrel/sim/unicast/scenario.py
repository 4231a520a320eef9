"""Unicast: messages from one node to another, their routing, and the duration of a transfer.

Rule: a message with one copy is delivered directly. With L copies it is sprayed, half of the copies at every contact,
and a last copy waits (Spyropoulos and others, 2008). In an epidemic, each node that meets a holder gets a copy.
Rule: memory is unlimited, and a delivered message is removed everywhere at once: these are baselines of delay.
Rule: the same seed gives the same messages for every router. No message is created in the last tenth of the time, so
that almost all arrive.
"""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass

from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import real, whole

__all__ = ["EPIDEMIC", "Parcel", "Unicast"]

EPIDEMIC = 0
"""Number of copies that means unlimited."""
_MAX_MESSAGES = 20_000_000
_CREATED_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Parcel:
    """One message: time of creation, source node, and destination node."""

    created_s: float
    source: int
    destination: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unicast:
    """The settings of one simulation."""

    copies: int = 10
    """L; 1 is direct delivery, 0 epidemic."""
    interval_s: float = 30.0
    """One message is created per interval, at a random moment in it."""
    message_bytes: int = 0
    rate_bytes_s: float = 250_000.0
    """Rate of a transfer, which takes message_bytes / rate_bytes_s; 0 bytes take no time."""
    look_s: float = 0.0
    """Period at which nodes scan for neighbours and messages; 0: they notice at once."""

    def __post_init__(self) -> None:
        whole("copies", self.copies, 0, 1_000_000)
        real("interval_s", self.interval_s, 1e-3, 1e9)
        whole("message_bytes", self.message_bytes, 0, 1 << 40)
        real("rate_bytes_s", self.rate_bytes_s, 1e-3, 1e15)
        real("look_s", self.look_s, 0, 1e6)

    @property
    def transfer_s(self) -> float:
        """Duration of a transfer until both nodes notice its end at their next scan."""
        took_s = self.message_bytes / self.rate_bytes_s
        return math.ceil(took_s / self.look_s) * self.look_s if self.look_s > 0 else took_s

    def assumptions(self) -> dict[str, object]:
        """Return every setting, for reports."""
        return asdict(self) | {"transfer_s": self.transfer_s}

    def parcels(self, *, nodes: int, seconds: float, seed: int) -> list[Parcel]:
        """Draw the messages of a simulation, in the order of time."""
        count = int(_CREATED_SHARE * seconds / self.interval_s)
        if count > _MAX_MESSAGES:
            raise InvalidValueError("interval_s", self.interval_s, f"one that makes at most {_MAX_MESSAGES} messages")
        rng = random.Random(f"{seed}/parcels")
        found = []
        for number in range(count):
            created_s = (number + rng.random()) * self.interval_s
            if self.look_s > 0:
                created_s = math.ceil(created_s / self.look_s) * self.look_s
            source, destination = rng.sample(range(nodes), 2)
            found.append(Parcel(created_s, source, destination))
        return found
