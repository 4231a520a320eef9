"""Settings of way-servers and of the administrative server: those of a node, the campus's key, and the broker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from whimbrel.carry.control.keys import key_statement
from whimbrel.carry.control.segments import topic_name
from whimbrel.carry.daemon.settings import NodeSettings, signer_of
from whimbrel.carry.hello import MAX_COPIES, Sample
from whimbrel.carry.rules import COPIES
from whimbrel.client import Backoff, Client, Tls
from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import name, real, text, whole
from whimbrel.model.clock import US_PER_S, microseconds, parse_time
from whimbrel.model.replicas import TARGET

__all__ = ["AdminSettings", "BrokerSettings", "WayServerSettings"]

_MAX_HOST_BYTES = 255
_MAX_CREDENTIAL_BYTES = 65_535
"""The longest user name and password of MQTT."""


@dataclass(frozen=True, kw_only=True)  # without slots: a way-server's settings have two bases
class BrokerSettings:
    """Address of the broker, and the user and password for it."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: 1883, or 8883 with a certificate authority."""
    user: str = ""
    password_file: str = ""
    tls_ca: str = ""
    bridge: tuple[str, ...] = ()
    """Topics whose samples are exchanged with the broker."""

    def __post_init__(self) -> None:
        name("host", self.host, max_bytes=_MAX_HOST_BYTES)
        whole("port", self.port, 0, 65_535)
        text("user", self.user, max_bytes=_MAX_CREDENTIAL_BYTES)
        for each in self.bridge:
            topic_name("bridge", each)
        if self.password_file and not self.user:
            raise InvalidValueError("password_file", self.password_file, "none without a user")

    def client(self, client_id: str, reconnect: Backoff) -> Client:
        """Return a client that reconnects when its connection is lost."""
        return Client(
            self.host,
            self.port or (8_883 if self.tls_ca else 1_883),
            client_id=client_id,
            username=self.user or None,
            password=self._password(),
            tls=Tls(ca=Path(self.tls_ca)) if self.tls_ca else None,
            reconnect=reconnect,
        )

    def _password(self) -> str | None:
        """Read the password; errors quote nothing of its file."""
        if not self.password_file:
            return None
        try:
            with Path(self.password_file).open("rb") as stream:
                data = stream.read(_MAX_CREDENTIAL_BYTES + 1)
            lines = data.decode().splitlines()
        except OSError as error:
            allowed = f"one that can be read ({error.strerror})"
            raise InvalidValueError("password file", self.password_file, allowed) from None
        except UnicodeDecodeError:
            raise InvalidValueError("password file", self.password_file, "one in UTF-8") from None
        if len(data) > _MAX_CREDENTIAL_BYTES or not lines or not lines[0]:
            allowed = f"one with the password in its first line, at most {_MAX_CREDENTIAL_BYTES} bytes"
            raise InvalidValueError("password file", self.password_file, allowed)
        return lines[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class WayServerSettings(NodeSettings, BrokerSettings):
    """The settings of a way-server."""

    name: str = ""
    """Its name in censuses, which no other way-server may have."""
    campus_key: str = ""
    """File with the secret key of the campus."""
    previous_key: str = ""
    """File with the previous secret key of the campus, which signs a statement that names the new key."""
    previous_until: str = ""
    """Time at which the previous key retires, in ISO 8601."""
    clock: str = "admin"
    """Source of its time: ``admin`` (the administrative server), or ``own`` where the machine's clock is right."""
    census_s: float = 5.0

    def __post_init__(self) -> None:
        NodeSettings.__post_init__(self)
        BrokerSettings.__post_init__(self)
        name("name", topic_name("name", self.name), max_bytes=64)
        if not self.campus_key:
            raise InvalidValueError("campus_key", None, "a file with the secret key of the campus")
        if self.clock not in {"admin", "own"}:
            raise InvalidValueError("clock", self.clock, "admin or own")
        if bool(self.previous_key) != bool(self.previous_until):
            raise InvalidValueError("previous_until", self.previous_until, "a time, together with previous_key")
        real("census_s", self.census_s, 0.1, 3_600)

    def statements(self) -> list[Sample]:
        """Return the statement by which the previous key names the new one, the same at every way-server."""
        if not self.previous_key:
            return []
        retires_at = parse_time(self.previous_until)
        new_key = signer_of(Path(self.campus_key)).public
        return [key_statement(signer_of(Path(self.previous_key)), new_key, at=retires_at - 1, retires_at=retires_at)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings(BrokerSettings):
    """The settings of the administrative server."""

    data: str = "campus-admin"
    topics: str = ""
    copies: int = COPIES
    target: float = TARGET
    window_s: float = 3_600.0
    every_s: float = 60.0
    """Least time between two versions of control data."""
    metrics_port: int = 0
    """The port of ``/metrics`` on the loopback interface; 0: none."""

    def __post_init__(self) -> None:
        BrokerSettings.__post_init__(self)
        whole("copies", self.copies, 1, MAX_COPIES)
        real("target", self.target, 0, 1)
        real("window_s", self.window_s, 1, 30 * 86_400)
        real("every_s", self.every_s, 0.1, 86_400)
        whole("metrics_port", self.metrics_port, 0, 65_535)

    @property
    def window_us(self) -> int:
        """Time in microseconds for which a user counts after it was met."""
        return microseconds(self.window_s)

    @property
    def every_us(self) -> int:
        """Least time between two versions of control data, in microseconds."""
        return max(microseconds(self.every_s), US_PER_S // 10)
