"""Errors of a client, one class per reaction of its application.

Rule: these are about the broker and the connection to it. Errors of the application itself are an
``InvalidValueError`` or a ``FilterError``, as everywhere.
"""

from __future__ import annotations

from whimbrel.errors import WhimbrelError
from whimbrel.mqtt.codes import ReasonCode

__all__ = [
    "CannotConnectError",
    "ClientClosedError",
    "ClientError",
    "ConnectRefusedError",
    "DismissedError",
    "MalformedAnswerError",
    "PublishLostError",
    "PublishRefusedError",
    "RequestLostError",
    "SessionRefusedError",
    "SubscriptionRefusedError",
    "is_temporary",
]

_RETURN_CODES = {
    1: "this version of MQTT is not spoken",
    2: "the client identifier is not allowed",
    3: "the server is unavailable",
    4: "bad user name or password",
    5: "not authorized",
}
"""Return codes of CONNACK in 3.1.1."""

_TEMPORARY = frozenset(
    {
        3,  # of 3.1.1: server unavailable
        ReasonCode.UNSPECIFIED_ERROR,
        ReasonCode.SERVER_UNAVAILABLE,
        ReasonCode.SERVER_BUSY,
        ReasonCode.SERVER_SHUTTING_DOWN,
        ReasonCode.KEEP_ALIVE_TIMEOUT,
        ReasonCode.MESSAGE_RATE_TOO_HIGH,
        ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.CONNECTION_RATE_EXCEEDED,
        ReasonCode.MAXIMUM_CONNECT_TIME,
        ReasonCode.NORMAL_DISCONNECTION,
    }
)


def is_temporary(code: int) -> bool:
    """Return whether *code* is temporary: the server may accept the same request a little later."""
    return code in _TEMPORARY


_TITLES = {int(code): code.title for code in ReasonCode} | _RETURN_CODES


def _describe(code: int, reason: str | None) -> str:
    title = _TITLES.get(code, "unknown code")
    return f"{title} (0x{code:02X})" if reason is None else f"{reason} (0x{code:02X} {title})"


class ClientError(WhimbrelError):
    """The base class of the client's errors."""


class CannotConnectError(ClientError):
    """There is no answer, or not that of a broker. Reaction: check address and network, or try later."""

    def __init__(self, host: str, port: int, why: str) -> None:
        super().__init__(host, port, why)
        self.host, self.port, self.why = host, port, why

    def __str__(self) -> str:
        return f"cannot connect to {self.host} port {self.port}: {self.why}"


class ConnectRefusedError(ClientError):
    """The broker refused CONNECT. Reaction: by *code*; in 3.1.1 it is a return code, 1 to 5."""

    def __init__(self, code: int, reason: str | None = None) -> None:
        super().__init__(code, reason)
        self.code, self.reason = code, reason

    def __str__(self) -> str:
        return f"the broker refused the connection: {_describe(self.code, self.reason)}"


class DismissedError(ClientError):
    """The broker ended the connection, and reconnecting would not help (e.g. another client has the same id)."""

    def __init__(self, code: int, reason: str | None = None) -> None:
        super().__init__(code, reason)
        self.code, self.reason = code, reason

    def __str__(self) -> str:
        return f"the broker ended the connection: {_describe(self.code, self.reason)}"


class PublishRefusedError(ClientError):
    """The broker did not accept a publication. Reaction: by *code*."""

    def __init__(self, topic: str, code: ReasonCode, reason: str | None = None) -> None:
        super().__init__(topic, code, reason)
        self.topic, self.code, self.reason = topic, code, reason

    def __str__(self) -> str:
        return f"publication to {self.topic} refused: {_describe(self.code, self.reason)}"


class PublishLostError(ClientError):
    """The broker lost the session before it answered a QoS 2 publication.

    Reaction: publish again if twice is better than never. A ``session_expiry_s`` makes it unlikely.
    """

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return f"publication to {self.topic}: the session was lost, and it is unknown whether it was accepted"


class SubscriptionRefusedError(ClientError):
    """The broker did not accept a subscription. Reaction: by *code*; the reason says what is allowed."""

    def __init__(self, topic_filter: str, code: int, reason: str | None = None) -> None:
        super().__init__(topic_filter, code, reason)
        self.topic_filter, self.code, self.reason = topic_filter, code, reason

    def __str__(self) -> str:
        return f"subscription to {self.topic_filter} refused: {_describe(self.code, self.reason)}"


class SessionRefusedError(ClientError):
    """The broker refused a request about a named session. Reaction: by *code*.

    A session that does not exist and a missing right have the same code, 0x87, so that a client cannot learn which
    sessions exist. *session* is empty if the request was not about one.
    """

    def __init__(self, session: str, code: int, reason: str | None = None) -> None:
        super().__init__(session, code, reason)
        self.session, self.code, self.reason = session, code, reason

    def __str__(self) -> str:
        about = f"session {self.session}: " if self.session else ""
        return f"{about}request refused: {_describe(self.code, self.reason)}"


class RequestLostError(ClientError):
    """The connection was lost before the answer to a request that must not be made twice.

    Reaction: check (``sessions.show``, ``sessions.list``) before repeating the request. The client does not rejoin the
    session by itself; join it again.
    """

    def __init__(self, session: str, verb: str) -> None:
        super().__init__(session, verb)
        self.session, self.verb = session, verb

    def __str__(self) -> str:
        return f"session {self.session}: connection lost; it is not known whether the request {self.verb} was done"


class MalformedAnswerError(ClientError):
    """The broker's answer cannot be parsed. Reaction: check which broker it is."""

    def __init__(self, what: str, expected: str) -> None:
        super().__init__(what, expected)
        self.what, self.expected = what, expected

    def __str__(self) -> str:
        return f"the broker's answer cannot be read: {self.what} should be {self.expected}"


class ClientClosedError(ClientError):
    """The client was closed before or during a call, or was never connected."""

    def __init__(self, *, is_new: bool = False) -> None:
        super().__init__()
        self.is_new = is_new

    def __str__(self) -> str:
        return "Not connected: use `async with Client(…)`" if self.is_new else "the client is closed"
