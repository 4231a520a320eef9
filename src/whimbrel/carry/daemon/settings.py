"""Settings of a campus daemon: from the command line, else from a TOML file.

Rule: the file has the names of the command line's options, with ``_`` for ``-``. An unknown name or a value of another
type is refused; the error names the file, the setting, the value, and the allowed ones.
Rule: a file with a secret key must be readable by its owner only.
"""

from __future__ import annotations

import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from whimbrel.carry.hello import MAX_COPIES, MAX_PLACES
from whimbrel.carry.node import PLACES
from whimbrel.carry.rules import COPIES
from whimbrel.carry.signatures import SEED_BYTES, SampleSigner
from whimbrel.carry.transport.udp import PORT
from whimbrel.carry.wire import LINK, RADIO, Profile
from whimbrel.errors import InvalidInputError, InvalidValueError, Phrase
from whimbrel.model.bounds import real, whole

__all__ = ["NodeSettings", "SettingsError", "key_of", "read_settings", "signer_of"]

_MAX_FILE_BYTES = 1 << 20
_KEY_BYTES = 32
_PROFILES = {each.name: each for each in (LINK, RADIO)}


class SettingsError(InvalidInputError):
    """A settings file cannot be used. Reaction: correct it."""

    def __init__(self, source: Path, name: str, found: object, allowed: str) -> None:
        super().__init__(source, name, found, allowed)
        self.source, self.name, self.found, self.allowed = source, name, found, allowed

    def __str__(self) -> str:
        return f"{self.source}: {self.name}: found {self.found}, allowed is {self.allowed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """The settings of a node; its TOML file has the same names."""

    data: str = "campus-data"
    interface: str = ""
    """The network interface; empty: the only one that has IPv6 link-local multicast."""
    udp_port: int = PORT
    address: str = ""
    """At most 16 hexadecimal digits; empty: a random address, drawn at the first start and stored with the memory."""
    topics: str = ""
    places: int = PLACES
    copies: int = COPIES
    hello_s: float = 1.0
    profile: str = LINK.name
    key: tuple[str, ...] = ()
    """Public keys of the campus; none: there are no way-servers."""
    sign: str = ""
    """A file with the secret key that signs what the node publishes."""
    publisher: tuple[str, ...] = ()
    """Public keys of publishers; with any, samples that none of them signed are refused."""
    shows_retrieved: bool = False
    reach: str = ""
    metrics_port: int = 0
    """The port of ``/metrics`` on the loopback interface; 0: none."""
    log_bytes: int = 64 << 20
    """Approximate bound of the node's own log, in bytes; 0: no log."""

    def __post_init__(self) -> None:
        whole("udp_port", self.udp_port, 1, 65_535)
        whole("metrics_port", self.metrics_port, 0, 65_535)
        whole("places", self.places, 1, MAX_PLACES)
        whole("copies", self.copies, 1, MAX_COPIES)
        real("hello_s", self.hello_s, 0.01, 3_600)
        if self.log_bytes:
            whole("log_bytes", self.log_bytes, 1 << 20, 1 << 50)
        if self.profile not in _PROFILES:
            raise InvalidValueError("profile", self.profile, " or ".join(_PROFILES))
        if self.address and not _is_hexadecimal(self.address, most=16):
            raise InvalidValueError("address", self.address, "at most 16 hexadecimal digits")
        for each in (*self.key, *self.publisher):
            key_of("public key", each)

    @property
    def folder(self) -> Path:
        """The folder with the node's memory and log."""
        return Path(self.data)

    @property
    def frame_profile(self) -> Profile:
        """The profile that bounds the size of frames."""
        return _PROFILES[self.profile]


Settings = TypeVar("Settings")


def read_settings(kind: type[Settings], file: Path | None, given: Mapping[str, object]) -> Settings:
    """Return settings: each from *given* unless it is None there, else from *file*, else its default."""
    values = {} if file is None else _read_file(kind, file)
    values |= {name: value for name, value in given.items() if value is not None}
    return kind(**values)


def _read_file(kind: type[Any], file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            data = stream.read(_MAX_FILE_BYTES + 1)
        tree = tomllib.loads(data[:_MAX_FILE_BYTES].decode())
    except OSError as error:
        raise InvalidValueError("file of settings", str(file), f"one that can be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:  # TOML and UTF-8
        raise SettingsError(file, "the file", Phrase(str(error)), "TOML") from None
    types = get_type_hints(kind)
    names = [each.name for each in fields(kind)]
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if name not in names:
            raise SettingsError(file, name, "an unknown setting", ", ".join(sorted(names)))
        found[name] = _check(file, name, value, types[name])
    return found


def _check(file: Path, name: str, value: object, kind: object) -> object:
    if kind is float and type(value) is int:
        return float(value)
    if kind == tuple[str, ...]:
        if isinstance(value, list) and all(isinstance(each, str) and "\0" not in each for each in value):
            return tuple(value)
        raise SettingsError(file, name, repr(value), "a list of texts")
    assert isinstance(kind, type)
    if type(value) is not kind:
        words = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
        raise SettingsError(file, name, repr(value), words[kind])
    if isinstance(value, str) and "\0" in value:  # no name of a file or an interface has it
        raise SettingsError(file, name, repr(value), "a text without U+0000")
    return value


def _is_hexadecimal(text: str, *, most: int) -> bool:
    return 0 < len(text) <= most and all(each in "0123456789abcdefABCDEF" for each in text)


def key_of(what: str, text: str) -> bytes:
    """Parse a key of 64 hexadecimal digits; the error message calls it *what*."""
    if len(text) != 2 * _KEY_BYTES or not _is_hexadecimal(text, most=2 * _KEY_BYTES):
        others = "" if len(text) != 2 * _KEY_BYTES else ", not all of them hexadecimal digits"
        raise InvalidValueError(what, Phrase(f"{len(text)} characters{others}"), "64 hexadecimal digits")
    return bytes.fromhex(text)


def signer_of(file: Path) -> SampleSigner:
    """Read the secret key in *file*: 64 hexadecimal digits; only the owner may have access to the file."""
    try:
        with file.open("rb") as stream:
            mode = stat.S_IMODE(file.stat().st_mode)
            text = stream.read(4 * SEED_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise InvalidValueError("key file", str(file), f"one that can be read ({error.strerror})") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        sentence = f"key file {file}: found mode {mode:04o}, allowed is 0600: others can read or change the secret key"
        raise InvalidValueError("key file", str(file), "one of mode 0600", sentence)
    return SampleSigner(key_of(f"key file {file}", text))
