"""Passwords of a session (Elvin proxy, 5.2.1): the rights of each password level, and the stored scrypt hashes.

Rule: a session has passwords of one, two or three levels, or an access control list (``hold.access``); the type
``Access`` is either of these.
Rule: only the scrypt hash of a password is stored; neither password nor hash appears in a ``repr`` or in an error.
Rule: a check takes the same time whether the password is right or wrong: the hashes of all levels are always computed.
Rule: a hash with a lower cost than is configured today is replaced when its password is given next (``examine``).
Rule: for a session that does not exist a ``decoy`` (dummy hashes) is checked, so that the answer takes as long as for
a session that exists.
Rule: the salt is an argument: only the shell draws random bytes.

| level | one password | user, admin | user, admin, owner |
|---|---|---|---|
| user | – | join, receive | join, receive |
| admin | – | all | all but deletion and passwords |
| owner | all | – | all |
"""

from __future__ import annotations

import hashlib
import hmac
import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeAlias

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.hold.access import (
    ALL_RIGHTS,
    AccessControlList,
    Right,
    access_refusal,
    access_text,
    access_tree,
    read_list,
)
from whimbrel.model.bounds import name, whole

__all__ = [
    "DEFAULT_COST",
    "Access",
    "Cost",
    "PasswordHash",
    "Passwords",
    "decoy",
    "read_access",
]

MAX_PASSWORD_BYTES = 1_024
MIN_SALT_BYTES, MAX_SALT_BYTES = 16, 64
HASH_BYTES = 32
_MAX_N, _MAX_R, _MAX_P = 2**18, 32, 16
_MAX_MEMORY_BYTES = 2**27
"""Most memory of one hash in bytes, which is that of the default cost; the shell bounds how many run at once."""
_MAX_WORK = 2**21
_HEXADECIMAL = re.compile(r"(?:[0-9a-f]{2})+")

# The rights of each level, for each allowed combination of levels: the paper's three schemes.
_USER, _ADMIN, _OWNER = "user", "admin", "owner"
_SCHEMES: dict[tuple[str, ...], dict[str, frozenset[Right]]] = {
    (_OWNER,): {_OWNER: ALL_RIGHTS},
    (_USER, _ADMIN): {_USER: frozenset({Right.JOIN}), _ADMIN: ALL_RIGHTS},
    (_USER, _ADMIN, _OWNER): {
        _USER: frozenset({Right.JOIN}),
        _ADMIN: frozenset({Right.JOIN, Right.CHANGE_SUBSCRIPTIONS}),
        _OWNER: ALL_RIGHTS,
    },
}
_SCHEMES_TEXT = "those of owner; of user and admin; or of user, admin and owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of one hash: scrypt's parameters n, r and p.

    The default is the recommendation for scrypt of OWASP's Password Storage Cheat Sheet; it takes 128 MiB of memory.
    """

    n: int = 2**17
    r: int = 8
    p: int = 1

    def __post_init__(self) -> None:
        # Checked before any hash is computed: a stored n of 2**40 would exhaust the machine's memory.
        whole("scrypt n", self.n, 2, _MAX_N)
        whole("scrypt r", self.r, 1, _MAX_R)
        whole("scrypt p", self.p, 1, _MAX_P)
        if self.n & (self.n - 1):
            raise InvalidValueError("scrypt n", self.n, "a power of two")
        if 128 * self.n * self.r > _MAX_MEMORY_BYTES:
            raise InvalidValueError("scrypt memory, 128 n r", 128 * self.n * self.r, f"at most {_MAX_MEMORY_BYTES}")
        if self.n * self.r * self.p > _MAX_WORK:
            raise InvalidValueError("scrypt work, n r p", self.n * self.r * self.p, f"at most {_MAX_WORK}")

    @classmethod
    def of_memory(cls, mib: int) -> Cost:
        """Return the cost of a hash that takes *mib* MiB of memory, a power of two; time grows with memory."""
        return cls(n=mib * 2**20 // (128 * 8))

    def is_below(self, other: Cost) -> bool:
        """Return whether guessing a password costs less work or less memory than with *other*."""
        return self.n * self.r * self.p < other.n * other.r * other.p or self.n * self.r < other.n * other.r


DEFAULT_COST = Cost()


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordHash:
    """Hash of one password, with the salt and the cost that a check needs to hash a password in the same way."""

    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)
    cost: Cost = DEFAULT_COST

    def __post_init__(self) -> None:
        _check_size("salt", self.salt, MIN_SALT_BYTES, MAX_SALT_BYTES)
        _check_size("hash", self.digest, HASH_BYTES, HASH_BYTES)

    @classmethod
    def of(cls, password: str, *, salt: bytes, cost: Cost = DEFAULT_COST) -> PasswordHash:
        """Return the hash of *password* with *salt* at *cost*; raise ``InvalidValueError`` if it is not allowed."""
        _check_size("salt", salt, MIN_SALT_BYTES, MAX_SALT_BYTES)
        return cls(salt=salt, digest=_scrypt(_secret(password), salt, cost), cost=cost)

    def verify(self, password: str | None) -> bool:
        """Return whether *password* is the right one; a value that cannot be a password takes the same time."""
        try:
            secret = _secret(password)
        except InvalidValueError:
            _scrypt(b"", self.salt, self.cost)
            return False
        return hmac.compare_digest(_scrypt(secret, self.salt, self.cost), self.digest)

    def spend(self, cost: Cost) -> None:
        """Compute a hash of *cost* and discard it, so that an answer takes as long as if the hash were needed."""
        _scrypt(b"", self.salt, cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passwords:
    """Password hashes of a session's levels: of the owner alone, of user and admin, or of all three."""

    user: PasswordHash | None = None
    admin: PasswordHash | None = None
    owner: PasswordHash | None = None

    def __post_init__(self) -> None:
        _check_scheme(tuple(self._levels()))

    @classmethod
    def create(
        cls,
        *,
        salt: bytes,
        user: str | None = None,
        admin: str | None = None,
        owner: str | None = None,
        cost: Cost = DEFAULT_COST,
    ) -> Passwords:
        """Return the hashes of the passwords of the given levels; *salt* is fresh random bytes.

        Each level has a salt of its own, derived from *salt*, so equal passwords of two levels have different hashes.
        """
        _check_size("salt", salt, MIN_SALT_BYTES, MAX_SALT_BYTES)
        words = {level: word for level, word in ((_USER, user), (_ADMIN, admin), (_OWNER, owner)) if word is not None}
        _check_scheme(tuple(words))
        return cls(
            **{level: PasswordHash.of(word, salt=_level_salt(level, salt), cost=cost) for level, word in words.items()}
        )

    def allows(
        self, right: Right, *, password: str | None = None, user: str | None = None, groups: Collection[str] = ()
    ) -> bool:
        """Return whether *password* gives *right*; *user* and *groups* are ignored."""
        return right in self.rights(password=password, user=user, groups=groups)

    def rights(
        self, *, password: str | None = None, user: str | None = None, groups: Collection[str] = ()
    ) -> frozenset[Right]:
        """Return the rights of all levels whose password is *password*; *user* and *groups* are ignored."""
        del user, groups
        levels = self._levels()
        rights = _SCHEMES[tuple(levels)]
        # A list, not a generator: the hashes of all levels are computed before a result is used (constant time).
        found = [(rights[level], hashed.verify(password)) for level, hashed in levels.items()]
        return frozenset[Right]().union(*(given for given, is_theirs in found if is_theirs))

    def examine(
        self, password: str | None, *, salt: bytes, cost: Cost = DEFAULT_COST, beside: Cost | None = None
    ) -> tuple[frozenset[Right], Passwords | None]:
        """Return the rights that *password* grants and, if a matching hash was below *cost*, the upgraded passwords.

        *salt* is fresh random bytes for an upgraded hash. *beside* is the cost of old hashes, if sessions of the broker
        still have hashes below *cost*. The check of each level then takes the time of a hash at *cost* and one at
        *beside*, so that the time of an answer does not reveal which sessions exist.
        """
        levels, given = self._levels(), frozenset[Right]()
        rights, raised = _SCHEMES[tuple(levels)], dict[str, PasswordHash]()
        for level, hashed in levels.items():
            is_theirs = hashed.verify(password)
            if hashed.cost.is_below(cost):
                if is_theirs and password is not None:
                    raised[level] = PasswordHash.of(password, salt=_level_salt(level, salt), cost=cost)
                else:
                    hashed.spend(cost)
            elif beside is not None:
                hashed.spend(beside)
            if is_theirs:
                given |= rights[level]
        return given, Passwords(**{**levels, **raised}) if raised else None

    def lowest_cost(self) -> Cost:
        """Return the lowest cost of the hashes."""
        return min((hashed.cost for hashed in self._levels().values()), key=lambda cost: cost.n * cost.r * cost.p)

    def to_text(self) -> str:
        """Return the JSON text for ``SessionChanged.access``: the hashes and their costs, but no password."""
        return access_text({"passwords": {level: _hash_to_tree(hashed) for level, hashed in self._levels().items()}})

    def _levels(self) -> dict[str, PasswordHash]:
        levels = ((_USER, self.user), (_ADMIN, self.admin), (_OWNER, self.owner))
        return {level: hashed for level, hashed in levels if hashed is not None}


Access: TypeAlias = Passwords | AccessControlList


def decoy(name: str, key: bytes, *, cost: Cost = DEFAULT_COST) -> Passwords:
    """Return dummy hashes to check a password against if the session *name* does not exist; no password matches.

    The number of levels is derived from *name* with *key*, which is random bytes. So checks of the same name always
    take the same time, as if the session existed, and a client that does not know *key* cannot see the difference.
    """
    _check_size("key", key, MIN_SALT_BYTES, MAX_SALT_BYTES)

    def draw(what: str) -> bytes:
        # The name comes from an untrusted client: a lone surrogate in it must not raise an error here.
        return hmac.digest(key, f"{what}\0{name}".encode(errors="surrogatepass"), "sha256")

    levels = tuple(_SCHEMES)[int.from_bytes(draw("levels")) % len(_SCHEMES)]
    return Passwords(
        **{
            level: PasswordHash(salt=draw(f"salt of {level}"), digest=draw(f"hash of {level}"), cost=cost)
            for level in levels
        }
    )


def read_access(access: str) -> Access:
    """Parse the JSON text *access*; raise ``InvalidValueError``, which never quotes a part of a password."""
    match access_tree(access):
        case {"passwords": dict() as levels, **rest} if not rest:
            if not levels.keys() <= {_USER, _ADMIN, _OWNER}:
                raise access_refusal("passwords", _SCHEMES_TEXT)
            return Passwords(**{level: _hash_from_tree(found) for level, found in levels.items()})
        case {"list": found, **rest} if not rest:
            return read_list(found)
    raise access_refusal("access", "an object of passwords, or of list")


def _hash_to_tree(hashed: PasswordHash) -> dict[str, object]:
    cost = hashed.cost
    return {"n": cost.n, "r": cost.r, "p": cost.p, "salt": hashed.salt.hex(), "hash": hashed.digest.hex()}


def _hash_from_tree(tree: object) -> PasswordHash:
    match tree:
        case {"n": int() as n, "r": int() as r, "p": int() as p, "salt": salt, "hash": digest, **rest} if not rest:
            return PasswordHash(salt=_bytes("salt", salt), digest=_bytes("hash", digest), cost=Cost(n=n, r=r, p=p))
    raise access_refusal("password hash", "an object of n, r, p, salt and hash")


def _bytes(what: str, value: object) -> bytes:
    if not isinstance(value, str) or not _HEXADECIMAL.fullmatch(value):
        raise access_refusal(what, "pairs of the digits 0 to 9 and a to f")
    return bytes.fromhex(value)


def _secret(password: str | None) -> bytes:
    """Return the bytes of *password* to hash, in Unicode's form NFC, since keyboards encode letters differently."""
    try:
        word = name("password", password, max_bytes=MAX_PASSWORD_BYTES)
        return unicodedata.normalize("NFC", word).encode()
    except InvalidValueError as error:
        sentence = f"a password must be {error.allowed}"
        raise InvalidValueError("password", Phrase("one (not shown)"), error.allowed, sentence) from None


def _level_salt(level: str, salt: bytes) -> bytes:
    return hashlib.sha256(level.encode() + salt).digest()


def _check_size(what: str, value: bytes, low: int, high: int) -> None:
    if not low <= len(value) <= high:
        raise InvalidValueError(what, Phrase(f"{len(value)} bytes"), f"{low} to {high} bytes")


def _check_scheme(levels: tuple[str, ...]) -> None:
    if levels not in _SCHEMES:
        raise InvalidValueError("passwords", Phrase(", ".join(levels) or "none"), _SCHEMES_TEXT)


def _scrypt(password: bytes, salt: bytes, cost: Cost) -> bytes:
    limit = 2 * _MAX_MEMORY_BYTES  # OpenSSL refuses a hash that needs more, and its estimate is slightly too high
    return hashlib.scrypt(password, salt=salt, n=cost.n, r=cost.r, p=cost.p, maxmem=limit, dklen=HASH_BYTES)
