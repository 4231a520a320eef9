"""Settings of a controller's daemon: a TOML file, and options that stand above it.

Rule: a setting that is unknown, of the wrong type or out of range is refused with its name and what is allowed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from whimbrel.errors import InvalidValueError, Phrase, description_of
from whimbrel.model.bounds import name as check_name
from whimbrel.model.bounds import text, whole
from whimbrel.rendezvous.controller import DumbPair, Parameters
from whimbrel.rendezvous.controller.dumb import read_pair
from whimbrel.rendezvous.events import MAX_CLASS, MAX_NAME_BYTES

__all__ = ["BrokerSettings", "ControllerSettings", "check_unpaired", "read_settings"]

_MAX_FILE_BYTES = 1 << 20
_UNPAIRED = ("accept", "refuse", "pair")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The broker that a controller reports to, under ``prefix`` + ``rendezvous/…``."""

    host: str
    port: int = 1_883
    user: str = ""
    password_file: str = ""
    prefix: str = ""

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.name != "port":
                _text(f"broker.{each.name}", getattr(self, each.name))
        whole("broker.port", self.port, 1, 65_535)
        if self.password_file and not self.user:
            raise InvalidValueError("broker.password_file", self.password_file, "broker.user beside it")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Settings of a controller's daemon."""

    transport: str
    log: Path
    name: str = "whimbrel-controller"
    device_class: int = 0
    node: str = "controller"
    unpaired: str = "accept"
    link_keys: Path | None = None
    metrics_port: int | None = None
    parameters: Parameters = field(default_factory=lambda: Parameters(has_park=False))
    broker: BrokerSettings | None = None
    dumb: tuple[DumbPair, ...] = ()
    """Dumb devices and their smart ones: refused, because no adapter can use the address of another device."""

    def __post_init__(self) -> None:
        if self.dumb:
            sentence = (
                f"dumb: {len(self.dumb)} of them with --transport {self.transport}, and no adapter can answer in the "
                "place of another device; allowed are none, or the simulated radio: "
                "whimbrel rendezvous simulate --dumb N"
            )
            raise InvalidValueError("dumb", len(self.dumb), "none", sentence)
        text("name", self.name, max_bytes=MAX_NAME_BYTES)
        check_name("node", self.node)
        whole("device_class", self.device_class, 0, MAX_CLASS)
        if self.metrics_port is not None:
            whole("metrics_port", self.metrics_port, 0, 65_535)
        if not self.name.startswith(self.parameters.name):
            allowed = f"a name that begins with {self.parameters.name!r}: by it devices know a controller"
            raise InvalidValueError("name", self.name, allowed)
        if self.parameters.has_park:
            allowed = "false: real radios have had no park since Bluetooth 5.0"
            raise InvalidValueError("parameters.has_park", found=True, allowed=allowed)
        check_unpaired(self.unpaired, self.link_keys)


def check_unpaired(unpaired: str, link_keys: Path | None) -> None:
    """Refuse a word for unpaired devices that is not known, or one that needs a file of link keys and has none."""
    if unpaired not in _UNPAIRED:
        raise InvalidValueError("unpaired", unpaired, ", ".join(_UNPAIRED))
    if unpaired != "accept" and link_keys is None:
        raise InvalidValueError("link_keys", Phrase("nothing"), "a file, as unpaired is not 'accept'")


def read_settings(path: Path | None, given: Mapping[str, object]) -> ControllerSettings:
    """Return the settings in *path*, with those that are *given* (not ``None``) in their place."""
    tree = {} if path is None else _read(path)
    tree |= {key: value for key, value in given.items() if value is not None}
    allowed = {each.name for each in fields(ControllerSettings)}
    _check_known(tree, allowed, "")
    for key in ("transport", "log"):
        if key not in tree:
            raise InvalidValueError(key, Phrase("nothing"), f"a value, by --{key} or in the file")
    values: dict[str, Any] = dict(tree)
    for key in ("log", "link_keys"):
        if key in values:
            values[key] = Path(_text(key, values[key]))
    for key in ("transport", "name", "node", "unpaired"):
        if key in values:
            _text(key, values[key])
    pairs = values.pop("dumb", ())
    if not isinstance(pairs, list | tuple):
        raise InvalidValueError("dumb", description_of(pairs), "a list of DUMB=SMART")
    values["dumb"] = tuple(read_pair(each) for each in pairs)
    parameters = _section(values.pop("parameters", {}), "parameters", {each.name for each in fields(Parameters)})
    values["parameters"] = Parameters(**{"has_park": False, **parameters})
    broker = values.pop("broker", None)
    if broker is not None:
        found = _section(broker, "broker", {each.name for each in fields(BrokerSettings)})
        if "host" not in found:
            raise InvalidValueError("broker.host", Phrase("nothing"), "the broker's name or address")
        values["broker"] = BrokerSettings(**found)
    return ControllerSettings(**values)


def _read(path: Path) -> dict[str, object]:
    with path.open("rb") as stream:
        data = stream.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise InvalidValueError(str(path), Phrase(f"more than {_MAX_FILE_BYTES} bytes"), "a file of settings")
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(str(path), Phrase(f"no TOML ({error})"), "TOML, in UTF-8") from None


def _section(value: object, name: str, allowed: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidValueError(name, description_of(value), f"a section, [{name}]")
    _check_known(value, allowed, f"{name}.")
    return value


def _check_known(tree: Mapping[str, object], allowed: set[str], prefix: str) -> None:
    for key in tree:
        if key not in allowed:
            raise InvalidValueError(
                f"setting {prefix}{key}", Phrase("a name that is not known"), ", ".join(sorted(allowed))
            )


def _text(what: str, value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, str):
        raise InvalidValueError(what, description_of(value), "text")
    return value
