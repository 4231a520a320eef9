"""Errors of a real radio, with the failed command, its result, and the reaction.

Rule: a command that the adapter refuses and one that it never answers are different errors: the first is a limit of
the adapter, the second is often a cable or a driver.
"""

from __future__ import annotations

from whimbrel.errors import WhimbrelError

__all__ = [
    "MAX_SLAVES",
    "AdapterLostError",
    "CommandRefusedError",
    "CommandSilentError",
    "NoSuchTransportError",
    "RadioError",
    "TooManySlavesError",
]

MAX_SLAVES = 7
"""Devices that a radio can be master of: a piconet has three bits for them."""


class RadioError(WhimbrelError):
    """The radio cannot do this. Reaction: use another adapter, or leave it out."""


class NoSuchTransportError(RadioError):
    """An adapter cannot be opened. Reaction: name another, or mend its rights or driver."""

    def __init__(self, transport: str, reason: str) -> None:
        super().__init__(transport, reason)
        self.transport, self.reason = transport, reason

    def __str__(self) -> str:
        return (
            f"no adapter at {self.transport!r}: {self.reason}; allowed are usb:0 (the first USB adapter), hci-socket:0 "
            "(Linux's hci0, as root) and any other transport of Bumble, such as tcp-client:127.0.0.1:9000"
        )


class AdapterLostError(RadioError):
    """The adapter is gone while it was in use. Reaction: plug it in again and start again."""

    def __init__(self, transport: str) -> None:
        super().__init__(transport)
        self.transport = transport

    def __str__(self) -> str:
        return f"the adapter at {self.transport!r} is gone: it was unplugged, or the process behind it has ended"


class CommandRefusedError(RadioError):
    """The adapter refuses a command at once. Reaction: use an adapter that has it (BR/EDR, not LE only)."""

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(command, reason)
        self.command, self.reason = command, reason

    def __str__(self) -> str:
        return f"the adapter refuses {self.command} ({self.reason}); needed is a BR/EDR adapter that has this command"


class CommandSilentError(RadioError):
    """The adapter never answers a command. Reaction: unplug and plug it in again; look at its driver."""

    def __init__(self, command: str, seconds: float) -> None:
        super().__init__(command, seconds)
        self.command, self.seconds = command, seconds

    def __str__(self) -> str:
        remedy = "plug it in again or look at its driver"
        return f"the adapter did not answer {self.command} within {self.seconds:g} s; {remedy}"


class TooManySlavesError(RadioError):
    """A radio is master of as many devices as it can be. Reaction: release one, then page again."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address

    def __str__(self) -> str:
        found = f"this radio is master of {MAX_SLAVES} devices already"
        return f"{self.address} was not paged: {found}, and allowed are {MAX_SLAVES}"
