"""Configuration files: reads them, prints one with all defaults, and makes the tables of the reference page."""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from pathlib import Path

from whimbrel.broker.settings.config import SECTIONS, Config, unknown_setting, with_values
from whimbrel.broker.settings.fields import ConfigError, Section, setting_of, settings_of, unreadable
from whimbrel.broker.settings.listeners import ListenerSettings, listeners_of
from whimbrel.errors import Phrase

__all__ = ["MAX_FILE_BYTES", "print_config", "read_config", "read_toml", "reference"]

MAX_FILE_BYTES = 16 << 20
_PLACE = re.compile(r" \(at (?:line ([0-9]+), column ([0-9]+)|end of document)\)$")
_COMMENT_WIDTH = 100
_CONSTANTS = (
    "These were settings, and no operator can know a better value. In this release a configured value is still obeyed, "
    "with a warning when the broker starts, in `whimbrel status` and in `whimbrel doctor`; the next release refuses it."
)


def read_config(path: Path) -> Config:
    """Read the configuration file *path*; settings that it omits have their defaults.

    Raise ``ConfigError`` if the file cannot be read or a setting is unknown or not allowed.
    """
    source = str(path)
    tree: dict[str, dict[str, object]] = {}
    listeners: tuple[ListenerSettings, ...] = ()
    for section, values in read_toml(path).items():
        if section == ListenerSettings.section:
            listeners = listeners_of(source, values)
            continue
        if section not in SECTIONS:
            raise unknown_setting(source, section)
        if not isinstance(values, dict):
            raise ConfigError(source, section, values, f"a section, [{section}], with its settings below")
        for key in values:
            if key not in settings_of(SECTIONS[section]):
                raise unknown_setting(source, f"{section}.{key}")
        tree[section] = values
    return with_values(Config(), tree, source, listeners=listeners)


def read_toml(path: Path) -> dict[str, object]:
    """Return the parsed content of the TOML file *path*; raise ``ConfigError`` with the line of a syntax error."""
    source = str(path)
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise unreadable(source, error) from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(source, "", Phrase(f"more than {MAX_FILE_BYTES} bytes"), f"at most {MAX_FILE_BYTES}")
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(source, f"line {line}", data[error.start : error.start + 1], "TOML, in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(source, data.decode(), str(error)) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a thousand brackets
        raise ConfigError(
            source, "", Phrase(str(error)), "TOML", sentence=f"this is too large for TOML: {error}"
        ) from None


def _not_toml(source: str, document: str, reason: str) -> ConfigError:
    place = _PLACE.search(reason)
    why = f"TOML ({_PLACE.sub('', reason)})"
    if place is None or place[1] is None:
        return ConfigError(source, "end of the file", Phrase("nothing"), why)
    line, column = int(place[1]), int(place[2])
    found = document.split("\n")[line - 1].strip()
    return ConfigError(source, f"line {line}, column {column}", found, why)


def print_config(config: Config | None = None) -> str:
    """Return a complete TOML file of *config* (default: the defaults), in which comments explain each setting."""
    shown = config or Config()
    parts = ["# The configuration of a Whimbrel broker: every setting, and its default."]
    for section, kind in SECTIONS.items():
        lines = [*_comment(_about(kind)), f"[{section}]"]
        for key, each in settings_of(kind).items():
            setting = setting_of(each)
            if setting.is_constant and f"{section}.{key}" not in shown.configured_constants:
                continue
            lines += ["", *_comment(setting.about), *_comment(f"Allowed: {setting.allowed}.")]
            lines.append(f"{key} = {_toml(getattr(getattr(shown, section), key))}")
        parts.append("\n".join(lines))
    parts += [_listener_lines(each) for each in shown.listeners] or [_no_listener_lines()]
    return "\n\n".join(parts) + "\n"


def _listener_lines(listener: ListenerSettings) -> str:
    """Return the TOML table of *listener*, only with the settings that differ from their defaults."""
    lines = [f"[[{listener.section}]]"]
    for key, each in settings_of(ListenerSettings).items():
        value = getattr(listener, key)
        if value != each.default:
            lines.append(f"{key} = {_toml(value)}")
    return "\n".join(lines)


def _no_listener_lines() -> str:
    """Return a TOML table of a listener with every setting, commented out, for a file without listeners."""
    lines = [*_comment(_about(ListenerSettings)), f"# [[{ListenerSettings.section}]]"]
    for key, each in settings_of(ListenerSettings).items():
        setting = setting_of(each)
        lines += ["#", *_comment(setting.about), *_comment(f"Allowed: {setting.allowed}.")]
        lines.append(f"# {key} = {_toml(each.default)}")
    return "\n".join(lines)


def reference() -> str:
    """Return all settings as Markdown: a heading and a table for each section, then a table of the constants."""
    parts, constants = list[str](), ["| constant | value | meaning |", "|---|---|---|"]
    kinds: dict[str, type[Section]] = {**SECTIONS, ListenerSettings.section: ListenerSettings}
    for section, kind in kinds.items():
        rows = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
        for key, each in settings_of(kind).items():
            setting = setting_of(each)
            name, value = f"`{section}.{key}`", f"`{_toml(each.default)}`"
            if setting.is_constant:
                constants.append(_row(name, value, setting.about))
            else:
                rows.append(_row(name, value, setting.allowed, setting.about))
        heading = f"[[{section}]]" if kind is ListenerSettings else f"[{section}]"
        parts.append(f"## `{heading}`\n\n{_about(kind)}\n\n" + "\n".join(rows))
    parts.append(f"## Constants\n\n{_CONSTANTS}\n\n" + "\n".join(constants))
    return "\n\n".join(parts) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _about(kind: type[Section]) -> str:
    return " ".join((kind.__doc__ or "").split())


def _comment(sentences: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(sentences, _COMMENT_WIDTH, break_long_words=False)]


def _toml(value: object) -> str:
    """Return *value* in TOML's syntax, which is JSON's for booleans, numbers and strings."""
    # TOML forbids the character U+007F in a string; JSON does not escape it.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
