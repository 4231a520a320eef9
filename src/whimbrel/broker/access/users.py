"""The users file: who may connect, with one line for each user: ``name:scrypt$n$r$p$salt$hash:group,group``.

Salt and hash are base64; the groups, and the colon before them, may be missing. Empty lines and lines that begin with
``#`` are ignored, and stay where they are when users are added and removed.

Rule: only the scrypt hash of a password is stored; neither password nor hash appears in an error.
Rule: a check takes the same time for every name: for a name that is not in the file, the password is compared with the
hash of another user, and the answer is no.
Rule: the file is replaced atomically, under a lock, and only its owner may read it. A reader sees the old or new file.
Rule: passwords may be checked from any thread, also while users are added and removed. scrypt takes most of a second
and 128 MiB, and releases the GIL, so an event loop calls ``log_in`` in one of a few worker threads.
Rule: a hash with a lower cost than is configured today is upgraded when its user logs in next: in memory and, if the
process runs as the owner of the file or as root, in the file.
Rule: after a successful login the password is cached in memory, as a hash with a random key of this process. So a fleet
of devices that reconnects after a network failure does not wait for scrypt. A wrong password always costs a scrypt run.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import tempfile
import threading
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import structlog

from whimbrel.broker.access.passwords import DEFAULT_COST, MIN_SALT_BYTES, Cost, PasswordHash
from whimbrel.broker.settings.fields import ConfigError, unreadable
from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.log.files import make_folder, rename, write_all
from whimbrel.model.bounds import name as checked_name

__all__ = ["User", "UserChanges", "Users", "check_group", "check_user_name"]

MAX_FILE_BYTES = 64 << 20
MAX_NAME_BYTES = 255
_ALLOWED_LINE = "name:scrypt$n$r$p$salt$hash, and perhaps :group,group"
_HASH = re.compile(r"scrypt\$([0-9]{1,9})\$([0-9]{1,9})\$([0-9]{1,9})\$([A-Za-z0-9+/]+={0,2})\$([A-Za-z0-9+/]+={0,2})")
_log = structlog.get_logger("whimbrel")
_UNPRINTED = {"Cc", "Zl", "Zp"}  # control characters, among them tab and line feed, and Unicode's line breaks


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user: one line of the users file."""

    name: str
    password: PasswordHash
    groups: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        check_user_name(self.name)
        for group in self.groups:
            check_group(group)

    def to_line(self) -> str:
        """Return the user's line of the file, without the line feed."""
        cost = self.password.cost
        salt, digest = (base64.b64encode(part).decode() for part in (self.password.salt, self.password.digest))
        line = f"{self.name}:scrypt${cost.n}${cost.r}${cost.p}${salt}${digest}"
        return f"{line}:{','.join(sorted(self.groups))}" if self.groups else line


def check_user_name(name: object) -> str:
    """Return *name* if it is a valid user name, or raise ``InvalidValueError``."""
    return _check_name("user name", name, ":")


def check_group(name: object) -> str:
    """Return *name* if it is a valid group name, or raise ``InvalidValueError``."""
    return _check_name("group name", name, ":,")


def _check_name(what: str, value: object, separators: str) -> str:
    name = checked_name(what, value, max_bytes=MAX_NAME_BYTES)
    if any(each in separators or unicodedata.category(each) in _UNPRINTED for each in name):
        marks = " and ".join(repr(each) for each in separators)
        raise InvalidValueError(what, name, f"text without {marks}, control characters and line breaks")
    # A line that begins with # is a comment; editors strip white space at the ends of lines.
    if name != name.strip() or name.startswith("#"):
        raise InvalidValueError(what, name, "text that neither begins with # nor begins or ends with white space")
    return name


class UserChanges(NamedTuple):
    """Differences between the users of a file and those that were read from it before."""

    revoked: frozenset[str] = frozenset()
    """Users who were removed, or whose password was changed."""
    regrouped: frozenset[str] = frozenset()
    """Users whose groups were changed."""


class Users:
    """The users of one users file, as they were when it was read, with the changes made here since."""

    def __init__(self, path: Path, users: Mapping[str, User]) -> None:
        self._path = path
        self._changing = threading.Lock()
        self._key = secrets.token_bytes(32)
        self._known: dict[str, tuple[PasswordHash, bytes]] = {}
        """Cache of successful logins by user: the stored hash, and a hash of the password with this process's key."""
        self._in_file = {name: user.password for name, user in users.items()}
        """The hashes in the file; a hash in memory may be an upgraded one that could not be written."""
        self._set(users)

    @classmethod
    def read(cls, path: Path, *, missing_ok: bool = False) -> Users:
        """Return the users in the file *path*; raise ``ConfigError`` naming the line that is not valid."""
        return cls(path, _users(path, _lines(path, missing_ok=missing_ok)))

    def _set(self, users: Mapping[str, User]) -> None:
        # One assignment, so that another thread sees either the old or the new users, never a mixture.
        self._state = (dict(users), tuple(user.password for user in users.values()) or (_nobody(),))

    def __len__(self) -> int:
        return len(self._state[0])

    def take(self, newer: Users) -> UserChanges:
        """Replace the users by those of *newer*, which was read later, and return the differences.

        A user whose password did not change keeps the cached login and the upgraded hash.
        """
        with self._changing:
            before, found = self._state[0], dict(newer._state[0])
            revoked = {name for name in before if newer._in_file.get(name) != self._in_file.get(name)}
            regrouped = {name for name in before.keys() & found.keys() if before[name].groups != found[name].groups}
            for name in (before.keys() & found.keys()) - revoked:
                found[name] = replace(found[name], password=before[name].password)
            self._path, self._in_file = newer._path, newer._in_file
            self._set(found)
        return UserChanges(frozenset(revoked), frozenset(regrouped))

    # -- ask -----------------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all users, sorted."""
        return sorted(self._state[0])

    def groups(self, name: str) -> frozenset[str]:
        """Return the groups of the user *name*; the empty set if the user does not exist."""
        user = self._state[0].get(name)
        return frozenset() if user is None else user.groups

    def verify(self, name: str, password: bytes | str | None) -> bool:
        """Return whether *name* is a user and *password* theirs; any thread may call this, and it takes a second."""
        users, hashes = self._state
        user = users.get(name)
        # The costs of users may differ. An unknown name is always checked against the same user's hash, so that it
        # takes a constant time like a known name: hash() is constant in a process, and seeded, so that no client can
        # find out which user was chosen.
        hashed = hashes[hash(name) % len(hashes)] if user is None else user.password
        is_theirs = hashed.verify(_text(password))
        return is_theirs and user is not None

    def log_in(self, name: str, password: bytes | str | None, *, cost: Cost = DEFAULT_COST) -> bool:
        """Return whether *name* is a user and *password* theirs; a password that was right before is checked quickly.

        If the password is right and the stored hash is below *cost*, upgrade the hash to *cost*.
        """
        user, word = self._state[0].get(name), _text(password)
        if user is not None and word is not None and self._is_known(user, word):
            return True
        is_theirs = self.verify(name, password)
        if is_theirs and user is not None and word is not None:
            hashed = user.password
            if hashed.cost.is_below(cost):
                hashed = PasswordHash.of(word, salt=secrets.token_bytes(MIN_SALT_BYTES), cost=cost)
                self._raise(user, hashed)
            self._known[name] = (hashed, self._quick(name, word))
        return is_theirs

    def _is_known(self, user: User, word: str) -> bool:
        hashed, quick = self._known.get(user.name, (None, b""))
        return hashed is user.password and hmac.compare_digest(quick, self._quick(user.name, word))

    def _quick(self, name: str, word: str) -> bytes:
        """Return a fast hash of a user's password, keyed with this process's secret and so useless without it."""
        return hashlib.blake2b(f"{name}\0{word}".encode(errors="surrogatepass"), key=self._key).digest()

    def _raise(self, user: User, hashed: PasswordHash) -> None:
        """Replace the hash of a user's password by *hashed*, a hash of the same password, in memory and in the file.

        Only log a warning if the file cannot be written.
        """
        with self._changing:  # another thread may do the same for another user
            users = dict(self._state[0])
            if users.get(user.name) != user:
                return
            users[user.name] = replace(user, password=hashed)
            self._set(users)
        try:
            if os.geteuid() not in {0, self._path.stat().st_uid}:
                raise PermissionError(1, "the file belongs to another account")
            with _locked(self._path) as path:
                lines = _lines(path, missing_ok=False)
                found = _users(path, lines).get(user.name)
                if found is not None and found.password == user.password:
                    lines[_place(lines, user.name)] = replace(found, password=hashed).to_line()
                    _put(path, lines)
                    self._in_file = {**self._in_file, user.name: hashed}
        except (OSError, ConfigError) as error:
            advice = f"set the password anew with `whimbrel user add {user.name}`"
            _log.warning("the hash of a password stays as it is in the file", reason=str(error), advice=advice)

    # -- change --------------------------------------------------------------------------------------------------------

    def add(
        self, name: str, password: str, *, groups: Collection[str] | None = None, cost: Cost = DEFAULT_COST
    ) -> bool:
        """Add the user *name*, or replace the password of an existing one; return whether the user is new.

        An existing user keeps its groups if *groups* is None. The file is created if it is missing.
        """
        check_user_name(name)
        for group in groups or ():
            check_group(group)
        hashed = PasswordHash.of(password, salt=secrets.token_bytes(MIN_SALT_BYTES), cost=cost)
        with _locked(self._path) as path:
            lines = _lines(path, missing_ok=True)
            users = _users(path, lines)
            before = users.get(name)
            kept = before.groups if before is not None and groups is None else frozenset(groups or ())
            user = User(name=name, password=hashed, groups=kept)
            if before is None:
                lines.append(user.to_line())
            else:
                lines[_place(lines, name)] = user.to_line()
            _put(path, lines)
            self._in_file = {**self._in_file, name: user.password}
            self._set({**users, name: user})
        return before is None

    def remove(self, name: str) -> bool:
        """Remove the user *name* from the file; return whether the user existed."""
        with _locked(self._path) as path:
            lines = _lines(path, missing_ok=True)
            users = _users(path, lines)
            was_there = users.pop(name, None) is not None
            if was_there:
                del lines[_place(lines, name)]
                _put(path, lines)
            self._set(users)
        return was_there


def _text(password: bytes | str | None) -> str | None:
    """Return *password* as text, or None if it is not UTF-8: MQTT sends bytes, and such bytes match no user."""
    if not isinstance(password, bytes):
        return password
    try:
        return password.decode()
    except UnicodeDecodeError:
        return None


def _nobody() -> PasswordHash:
    """Return a dummy hash of random bytes, to check passwords against if the file has no users."""
    return PasswordHash(salt=secrets.token_bytes(MIN_SALT_BYTES), digest=secrets.token_bytes(32))


# -- the file ----------------------------------------------------------------------------------------------------------


def _lines(path: Path, *, missing_ok: bool) -> list[str]:
    """Return the lines of the file; only a line feed ends a line, not Unicode's other line breaks."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        if missing_ok:
            return []
        sentence = "there is no such file; `whimbrel user add` makes one"
        raise ConfigError(str(path), "", Phrase(error.strerror), "a file", sentence=sentence) from None
    except OSError as error:
        raise unreadable(str(path), error) from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(str(path), "", Phrase(f"more than {MAX_FILE_BYTES} bytes"), f"at most {MAX_FILE_BYTES}")
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(str(path), f"line {line}", data[error.start : error.start + 1], "UTF-8") from None
    return lines[:-1] if not lines[-1] else lines


def _users(path: Path, lines: list[str]) -> dict[str, User]:
    users: dict[str, User] = {}
    for number, line in enumerate(lines, start=1):
        user = _user(str(path), f"line {number}", line)
        if user is None:
            continue
        if user.name in users:
            raise ConfigError(str(path), f"line {number}", user.name, "a user who is not in a line above")
        users[user.name] = user
    return users


def _user(source: str, where: str, line: str) -> User | None:
    """Parse one line; return its user, or None for an empty line or comment. An error never quotes a hash."""
    line = line.rstrip("\r")
    if _says_nothing(line):
        return None
    name, _, rest = line.partition(":")
    hashed, _, groups = rest.partition(":")
    parts = _HASH.fullmatch(hashed)
    if parts is None:
        sentence = f"{where}: expected {_ALLOWED_LINE}; `whimbrel user add` writes such a line"
        raise ConfigError(source, where, Phrase("another form"), _ALLOWED_LINE, sentence=sentence)
    try:
        n, r, p = (int(part) for part in parts.group(1, 2, 3))
        salt, digest = (base64.b64decode(part, validate=True) for part in parts.group(4, 5))
        password = PasswordHash(salt=salt, digest=digest, cost=Cost(n=n, r=r, p=p))
        return User(name=name, password=password, groups=frozenset(groups.split(",") if groups else ()))
    except binascii.Error:
        raise ConfigError(source, where, Phrase("a salt or hash that is no base64"), "base64 for both") from None
    except InvalidValueError as error:
        raise ConfigError(source, f"{where}: {error.what}", error.found, error.allowed) from None


def _says_nothing(line: str) -> bool:
    return not line.strip() or line.startswith("#")


def _place(lines: list[str], name: str) -> int:
    return next(index for index, line in enumerate(lines) if line.startswith(f"{name}:") and not _says_nothing(line))


@contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """Hold the lock of the users file; yield its path with symbolic links resolved, so that a link stays a link.

    The lock is a separate file in the same folder, because each change replaces the users file by a new one.
    """
    path = path.resolve()
    make_folder(path.parent)
    descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # blocks only briefly: the holder writes one small file
        yield path
    finally:
        os.close(descriptor)


def _put(path: Path, lines: list[str]) -> None:
    """Replace the content of *path* by *lines*, atomically; only its owner may read the file."""
    descriptor, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # of mode 0600
    try:
        try:
            with suppress(OSError):  # after a change by an administrator, the broker's account must still own the file
                was = path.stat()
                os.fchown(descriptor, was.st_uid, was.st_gid)
            write_all(descriptor, "".join(f"{line}\n" for line in lines).encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        rename(Path(beside), path)
    except BaseException:
        with suppress(OSError):
            Path(beside).unlink(missing_ok=True)
        raise
