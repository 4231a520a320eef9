"""Passwords of sessions, and keys, as commands get them: from a file, from the environment, or typed.

Rule: a password is never an argument, where other processes and the shell's history could see it.
Rule: an error never quotes a file that contains secrets.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.options.lines import name_of
from whimbrel.errors import InvalidValueError, Phrase

if TYPE_CHECKING:  # other commands need not load sessions
    from whimbrel.hold.access import AccessControlList

__all__ = [
    "ENVIRONMENT",
    "Access",
    "Insecure",
    "KeyFile",
    "Keys",
    "SessionPasswordFile",
    "keys_from",
    "password_from",
    "read_access_options",
    "session_password",
]

ENVIRONMENT = "WHIMBREL_SESSION_PASSWORD"
_MAX_FILE_BYTES = 65_536
_LEVELS = {1: ("owner",), 2: ("user", "admin"), 3: ("user", "admin", "owner")}

SessionPasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--session-password-file",
        metavar="FILE",
        help=f"The session's password is the one line of FILE; - asks for it, or reads it from a pipe. "
        f"Else {ENVIRONMENT} has it, or there is none.",
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="KEY", help="A key, SCHEME:HEX or SCHEME:private:TEXT; repeatable."),
]
KeyFile = Annotated[
    Path | None,
    typer.Option("--key-file", metavar="FILE", help="File of keys, one per line; use it for private keys."),
]
Insecure = Annotated[
    bool | None,
    typer.Option("--insecure/--secure", help="Whether keys need not match; without keys they need not."),
]


def password_from(path: Path) -> str:
    """Return the one line in *path*, without its end; errors quote nothing of it."""
    if str(path) == "-":
        data = sys.stdin.buffer.read(_MAX_FILE_BYTES)
    else:
        with path.open("rb") as stream:
            data = stream.read(_MAX_FILE_BYTES)
    try:
        line = data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise InvalidValueError(name_of(path), Phrase("bytes that are not UTF-8"), "a password in UTF-8") from None
    if "\n" in line or "\r" in line:
        raise InvalidValueError(name_of(path), Phrase("several lines"), "one line, the password")
    return line


def session_password(session: str, file: Path | None) -> str | None:
    """Return the password of *session*, given or typed at a terminal; None if there is none."""
    if file is None:
        return os.environ.get(ENVIRONMENT) or None
    if str(file) != "-" or not sys.stdin.isatty():
        return password_from(file) or None
    prompt = f"Password of the session {session}"
    typed: str = typer.prompt(prompt, hide_input=True, default="", show_default=False, err=True)
    return typed or None


def keys_from(keys: list[str] | None, file: Path | None) -> tuple[str, ...]:
    """Return the keys given as options and in a file."""
    found = list(keys or ())
    if file is not None:
        found += [line for line in _text(file).splitlines() if line]
    if not found:
        return ()
    from whimbrel.client.joining import checked_keys  # see above

    return checked_keys(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Access to a session, as given by options."""

    user: str | None = field(default=None, repr=False)
    admin: str | None = field(default=None, repr=False)
    owner: str | None = field(default=None, repr=False)
    acl: AccessControlList | None = None
    is_open: bool = False


def read_access_options(levels: int | None, file: Path | None, acl: Path | None, *, is_open: bool) -> Access | None:
    """Return the access given by at most one of the options; with *levels*, prompt for that many passwords."""
    if sum((levels is not None, file is not None, acl is not None, is_open)) > 1:
        raise typer.BadParameter("--levels, --passwords-file, --acl and --open exclude each other")
    if levels is not None:
        return _of({level: _ask(level) for level in _LEVELS[levels]})
    if file is not None:
        return _of(_levels_from(file))
    if acl is not None:
        return Access(acl=_acl_from(acl))
    return Access(is_open=True) if is_open else None


def _of(words: dict[str, str]) -> Access:
    return Access(user=words.get("user"), admin=words.get("admin"), owner=words.get("owner"))


def _ask(level: str) -> str:
    if not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to ask for the passwords; give --passwords-file")
    found: str = typer.prompt(f"Password of {level}", hide_input=True, confirmation_prompt="The same again", err=True)
    return found


def _levels_from(file: Path) -> dict[str, str]:
    found = _table(file)
    if tuple(level for level in _LEVELS[3] if level in found) not in _LEVELS.values() or len(found) > 3:
        raise _refusal(file, "passwords of owner; of user and admin; or of user, admin and owner")
    words = {level: word for level, word in found.items() if isinstance(word, str) and level in _LEVELS[3]}
    if len(words) < len(found):
        raise _refusal(file, "a text for each of user, admin and owner")
    return words


def _acl_from(file: Path) -> AccessControlList:
    from whimbrel.hold.access import access_tree, read_list  # see above

    tree: dict[str, object] = {"users": {}, "groups": {}, **_table(file)}
    try:
        return read_list(access_tree(json.dumps(tree)))
    except (InvalidValueError, TypeError):
        raise _refusal(file, "owner, and users and groups with arrays of rights") from None


def _table(file: Path) -> dict[str, object]:
    text = _text(file)
    try:
        found = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _refusal(file, "TOML or an object of JSON")
    return found


def _text(file: Path) -> str:
    if str(file) == "-":
        data = sys.stdin.buffer.read(_MAX_FILE_BYTES + 1)
    else:
        with file.open("rb") as stream:
            data = stream.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise InvalidValueError(
            name_of(file), Phrase(f"more than {_MAX_FILE_BYTES} bytes"), f"at most {_MAX_FILE_BYTES} bytes"
        )
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _refusal(file, "text in UTF-8") from None


def _refusal(file: Path, allowed: str) -> InvalidValueError:
    sentence = f"{name_of(file)}: expected {allowed}"
    return InvalidValueError(name_of(file), Phrase("another form"), allowed, sentence)
