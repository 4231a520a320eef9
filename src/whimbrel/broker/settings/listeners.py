"""Sections about listeners: ``[listen]`` and ``[tls]``, and any number of ``[[listener]]`` tables.

Rule: a ``[[listener]]`` inherits nothing from ``[tls]``, and only the users file from ``[access]``. So it never
admits more clients than its own settings allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from whimbrel.broker.settings import fields as setting
from whimbrel.broker.settings.fields import ConfigError, Section, nearest, settings_of
from whimbrel.model.bounds import text
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.topics import check_topic_name, disallowed_in

__all__ = ["MAX_LISTENERS", "ListenSettings", "ListenerSettings", "TlsSettings", "check_listening", "listeners_of"]

MAX_LISTENERS = 64
_MAX_SOCKET_BYTES = 103
"""Longest path of a Unix socket on every system (``sun_path`` has 104 bytes on some, the last of which is zero)."""
_MAX_MOUNT_BYTES = 1_024
_MAX_MODE = 0o777


def _mode(value: str) -> int | None:
    is_octal = len(value) in {3, 4} and all(each in "01234567" for each in value)
    return int(value, 8) if is_octal and int(value, 8) <= _MAX_MODE else None


def _mount(value: str) -> str | None:
    if not value:
        return value
    text("mount point", value, max_bytes=_MAX_MOUNT_BYTES)
    if not value.endswith("/") or value.startswith("$") or disallowed_in(value) is not None:
        return None
    try:
        check_topic_name(value)
    except ProtocolError:
        return None
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenSettings(Section):
    """Addresses and ports on which the broker accepts connections."""

    section: ClassVar[str] = "listen"

    host: str = setting.host(
        "127.0.0.1",
        'The address to listen on; "0.0.0.0" and "::" let other machines in.',
    )
    port: int = setting.port(1883, "The port of MQTT over TCP.")
    ws_port: int = setting.port(-1, "The port of MQTT over WebSocket.")
    tls_port: int = setting.port(-1, "The port of MQTT over TLS; needs a certificate.")
    wss_port: int = setting.port(-1, "The port of MQTT over WebSocket and TLS; needs a certificate.")
    http_port: int = setting.port(-1, "The port of metrics and health, over plain HTTP.")
    http_host: str = setting.host(
        "127.0.0.1",
        "The address of metrics and health, which every client that reaches it may read; loopback by default.",
    )
    ws_origins: str = setting.origins(
        "The web pages that may connect over WebSocket, by their Origin; programs, which send none, always may.",
    )
    web_hosts: str = setting.hosts(
        "The names by which browsers reach the ports for WebSocket and HTTP, beside loopback ones; others are refused.",
    )
    backlog: int = setting.whole(1_024, 1, setting.UINT16_MAX, "How many connections may wait to be accepted.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings(Section):
    """Certificates and TLS version for connections over TLS."""

    section: ClassVar[str] = "tls"

    certificate: str = setting.path("The broker's certificate and those that lead to its root, as PEM.")
    key: str = setting.path("The private key of the certificate, as PEM.")
    client_ca: str = setting.path("The roots that clients' certificates must lead to, as PEM.")
    revoked: str = setting.path("Certificate revocation lists of these roots, as PEM; needs client_ca.")
    require_client_certificate: bool = setting.flag(
        "Whether clients over TLS must show a certificate; needs client_ca.", default=False
    )
    minimum_version: str = setting.choice("1.2", ("1.2", "1.3"), "The oldest version of TLS that is spoken.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings(Section):
    """An additional listener: a port or a Unix socket with its own TLS, users and mount point.

    Without a users file, here or in [access], any client may connect to it; with one, clients that give no user name
    may connect only if anonymous is true here.
    """

    section: ClassVar[str] = "listener"

    name: str = setting.checked_text(
        "",
        "1 to 32 letters, digits, '_' and '-'",
        lambda value: value if _is_name(value) else None,
        "What the listener is called in log lines and errors; no two may share one.",
    )
    protocol: str = setting.choice("mqtt", ("mqtt", "websocket"), "What is spoken on it.")
    host: str = setting.host("127.0.0.1", "The address to listen on.")
    port: int = setting.port(-1, "The port to listen on; either a port or a socket is needed.")
    socket: str = setting.checked_text(
        "",
        f'the path of a Unix socket, at most {_MAX_SOCKET_BYTES} bytes; "" is none',
        lambda value: text("socket", value, max_bytes=_MAX_SOCKET_BYTES),
        "The Unix socket to listen on; one that a broker left behind is replaced.",
    )
    socket_mode: str = setting.checked_text(
        "0660",
        'octal digits, "0600" to "0777"',
        lambda value: None if _mode(value) is None else value,
        "Who may connect to the socket, as the mode of its file.",
    )
    tls_certificate: str = setting.path("The certificate of this listener, as PEM; with it everything is TLS.")
    tls_key: str = setting.path("The private key of the certificate, as PEM.")
    tls_client_ca: str = setting.path("The roots that clients' certificates must lead to, as PEM.")
    tls_revoked: str = setting.path("Certificate revocation lists of these roots, as PEM.")
    tls_require_client_certificate: bool = setting.flag(
        "Whether clients must show a certificate; needs tls_client_ca.", default=False
    )
    tls_minimum_version: str = setting.choice("1.2", ("1.2", "1.3"), "The oldest version of TLS that is spoken.")
    users: str = setting.path("The users file of this listener; without it that of [access], if there is one.")
    anonymous: bool = setting.flag(
        "Whether clients without a user name may connect although there is a users file.", default=False
    )
    mount: str = setting.checked_text(
        "",
        f'a topic that ends with / and does not begin with $, at most {_MAX_MOUNT_BYTES} bytes; "" is none',
        _mount,
        "The mount point: every topic of the listener's clients stands below it, and they do not see it.",
    )

    @property
    def mode(self) -> int:
        """The file permissions (mode) of the Unix socket."""
        return _mode(self.socket_mode) or 0

    def users_file(self, of_access: str) -> str:
        """Return the users file of this listener or, without one, *of_access*, the users file of the section [access].

        It is "" if neither is set.
        """
        return self.users or of_access

    def admits_anonymous(self, of_access: str) -> bool:
        """Return whether a client without a user name may connect; *of_access* is the users file of [access]."""
        return self.anonymous or not self.users_file(of_access)


def _is_name(value: str) -> bool:
    return value.isascii() and 1 <= len(value) <= 32 and all(each.isalnum() or each in "_-" for each in value)


def listeners_of(source: str, tables: object) -> tuple[ListenerSettings, ...]:
    """Return the listeners of a file's ``[[listener]]`` *tables*; raise ``ConfigError``, which names *source*."""
    if not isinstance(tables, Sequence) or isinstance(tables, str):
        sentence = "listeners are written [[listener]], with two brackets, each with its settings below"
        raise ConfigError(source, "listener", tables, "tables [[listener]]", sentence=sentence)
    found: list[ListenerSettings] = []
    for number, table in enumerate(tables, start=1):
        if not isinstance(table, Mapping):
            raise ConfigError(source, "listener", table, "tables [[listener]], each with its settings below")
        values = dict(table)
        values.setdefault("name", f"listener-{number}")
        for key in values:
            if key not in settings_of(ListenerSettings):
                meant = nearest(key, settings_of(ListenerSettings))
                hint = f"did you mean {meant}?" if meant else "see docs/reference/configuration.md"
                sentence = f"[[listener]] {number} has no setting {key}; {hint}"
                raise ConfigError(source, f"listener.{key}", "an unknown name", "a setting", sentence=sentence)
        try:
            found.append(ListenerSettings(**values))
        except ConfigError as error:
            where = f"[[listener]] {number}: {error.where.removeprefix('listener.')}"
            raise ConfigError(source, where, error.found, error.allowed, sentence=error.sentence) from None
    return tuple(found)


def check_listening(listen: ListenSettings, tls: TlsSettings, listeners: Sequence[ListenerSettings]) -> None:
    """Raise ``ConfigError`` if these settings contradict each other, such as two listeners on one port."""
    _check_tls(listen, tls)
    _check_listeners(listeners, _check_ports(listen))


def _check_tls(listen: ListenSettings, tls: TlsSettings) -> None:
    for key in ("tls_port", "wss_port"):
        if getattr(listen, key) >= 0 and not (tls.certificate and tls.key):
            sentence = "TLS needs both --tls-certificate and --tls-key (in a file: tls.certificate and tls.key)"
            raise ConfigError("", f"listen.{key}", getattr(listen, key), "-1 (off)", sentence=sentence)
    if tls.require_client_certificate and not tls.client_ca:
        sentence = "tls.require_client_certificate needs tls.client_ca, which signs the clients' certificates"
        raise ConfigError("", "tls.require_client_certificate", True, "false", sentence=sentence)
    if tls.revoked and not tls.client_ca:
        sentence = "tls.revoked needs tls.client_ca, whose clients' certificates it revokes"
        raise ConfigError("", "tls.revoked", tls.revoked, "none", sentence=sentence)


def _check_ports(listen: ListenSettings) -> dict[int | str, str]:
    """Return the name of the setting of each used port; raise ``ConfigError`` if two settings have the same port."""
    taken: dict[int, str] = {}
    for key in ("port", "ws_port", "tls_port", "wss_port", "http_port"):
        port = getattr(listen, key)
        if port > 0 and taken.setdefault(port, key) != key:
            sentence = f"listen.{key} and listen.{taken[port]} are both {port}; give each a port of its own"
            raise ConfigError("", f"listen.{key}", port, "another port", sentence=sentence)
    return {port: f"listen.{key}" for port, key in taken.items()}


def _check_listeners(listeners: Sequence[ListenerSettings], taken: dict[int | str, str]) -> None:
    if len(listeners) > MAX_LISTENERS:
        raise _error("name", len(listeners), f"{len(listeners)} listeners, at most {MAX_LISTENERS} are allowed")
    places: dict[int | str, str] = {**taken}
    names: set[str] = set()
    for each in listeners:
        _check_listener(each)
        if each.name in names:
            raise _error("name", each.name, f"two listeners are called {each.name}; give each a name of its own")
        names.add(each.name)
        place = each.socket or each.port
        if place and places.setdefault(place, f"listener {each.name}") != f"listener {each.name}":
            raise _error("port", place, f"listener {each.name} and {places[place]} are both on {place}")


def _check_listener(each: ListenerSettings) -> None:
    called = f"listener {each.name}"
    if bool(each.socket) == (each.port >= 0):
        raise _error("port", each.port, f"{called} needs either a port or a socket, and not both")
    if bool(each.tls_certificate) != bool(each.tls_key):
        raise _error("tls_key", each.tls_key, f"{called} needs both tls_certificate and tls_key, or neither")
    if each.tls_client_ca and not each.tls_certificate:
        raise _error("tls_client_ca", each.tls_client_ca, f"{called} has tls_client_ca, but no tls_certificate")
    if (each.tls_require_client_certificate or each.tls_revoked) and not each.tls_client_ca:
        needy = "tls_revoked" if each.tls_revoked else "tls_require_client_certificate"
        raise _error(needy, getattr(each, needy), f"{called} has {needy}, which needs tls_client_ca")


def _error(key: str, found: object, sentence: str) -> ConfigError:
    return ConfigError("", f"listener.{key}", found, "another value", sentence=sentence)
