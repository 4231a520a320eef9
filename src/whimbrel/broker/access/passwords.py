"""Passwords of a session (Elvin proxy, 5.2.1): what each level gives, and the scrypt hashes that are kept.

Rule: a session has passwords of one, two or three levels, or an access control list (``hold.access``); ``Access`` is
any of them.
Rule: no password is kept, only its scrypt hash; neither stands in a ``repr`` or in an error.
Rule: a check costs the same for every asker: the hashes of all levels are computed and compared, always.
Rule: a hash that costs less than is recommended today is replaced when its password is given next (``examine``).
Rule: for a session that does not exist a ``decoy`` is asked, so that it costs what one that exists would.
Rule: the salt is an argument: only a shell draws random bytes.

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
"""What one hash may take: as much as the default does. How many are computed at once is for the shell to bound."""
_MAX_WORK = 2**21
_HEXADECIMAL = re.compile(r"(?:[0-9a-f]{2})+")

# What the passwords give, by the levels that have one: the paper's three schemes.
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
    """What one hash costs: scrypt's n, r and p.

    The default is what OWASP's Password Storage Cheat Sheet recommends for scrypt; it takes 128 MiB of memory.
    """

    n: int = 2**17
    r: int = 8
    p: int = 1

    def __post_init__(self) -> None:
        # Bounded before anything is computed: a stored n of 2**40 would take the machine down.
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
        """Return the cost of a hash that takes *mib* mebibytes, a power of two; half the memory takes half the time."""
        return cls(n=mib * 2**20 // (128 * 8))

    def is_below(self, other: Cost) -> bool:
        """Tell whether guessing costs less work or less memory than with *other*."""
        return self.n * self.r * self.p < other.n * other.r * other.p or self.n * self.r < other.n * other.r


DEFAULT_COST = Cost()


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordHash:
    """One password, hashed, with what is needed to hash another for comparison."""

    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)
    cost: Cost = DEFAULT_COST

    def __post_init__(self) -> None:
        _check_size("salt", self.salt, MIN_SALT_BYTES, MAX_SALT_BYTES)
        _check_size("hash", self.digest, HASH_BYTES, HASH_BYTES)

    @classmethod
    def of(cls, password: str, *, salt: bytes, cost: Cost = DEFAULT_COST) -> PasswordHash:
        """Return the hash of *password*."""
        _check_size("salt", salt, MIN_SALT_BYTES, MAX_SALT_BYTES)
        return cls(salt=salt, digest=_scrypt(_secret(password), salt, cost), cost=cost)

    def verify(self, password: str | None) -> bool:
        """Return whether *password* is the one; what cannot be a password costs as much, and is not."""
        try:
            secret = _secret(password)
        except InvalidValueError:
            _scrypt(b"", self.salt, self.cost)
            return False
        return hmac.compare_digest(_scrypt(secret, self.salt, self.cost), self.digest)

    def spend(self, cost: Cost) -> None:
        """Take the time that a hash of *cost* takes."""
        _scrypt(b"", self.salt, cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passwords:
    """A password per level: the owner's alone, user's and admin's, or all three."""

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
        """Return the hashes of the passwords that are given; *salt* is fresh random bytes.

        Equal passwords of two levels give different hashes all the same: each level's salt is made of *salt*.
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
        """Return whether *password* gives *right*; users and groups mean nothing here."""
        return right in self.rights(password=password, user=user, groups=groups)

    def rights(
        self, *, password: str | None = None, user: str | None = None, groups: Collection[str] = ()
    ) -> frozenset[Right]:
        """Return all that *password* gives, by every level whose password it is; users and groups mean nothing here."""
        del user, groups
        levels = self._levels()
        rights = _SCHEMES[tuple(levels)]
        # A list, not a generator: every level is computed before one is looked at.
        found = [(rights[level], hashed.verify(password)) for level, hashed in levels.items()]
        return frozenset[Right]().union(*(given for given, is_theirs in found if is_theirs))

    def examine(
        self, password: str | None, *, salt: bytes, cost: Cost = DEFAULT_COST, beside: Cost | None = None
    ) -> tuple[frozenset[Right], Passwords | None]:
        """Return all that *password* gives; and these passwords with its hash at *cost*, if one of its levels is below.

        Where sessions with hashes below *cost* are about, *beside* is what those cost: then each level takes the time
        of both, so that the time an answer takes does not tell which sessions exist.
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
        """Return what the cheapest of the hashes costs."""
        return min((hashed.cost for hashed in self._levels().values()), key=lambda cost: cost.n * cost.r * cost.p)

    def to_text(self) -> str:
        """Return the JSON text for ``SessionChanged.access``: hashes and what they cost, no password."""
        return access_text({"passwords": {level: _hash_to_tree(hashed) for level, hashed in self._levels().items()}})

    def _levels(self) -> dict[str, PasswordHash]:
        levels = ((_USER, self.user), (_ADMIN, self.admin), (_OWNER, self.owner))
        return {level: hashed for level, hashed in levels if hashed is not None}


Access: TypeAlias = Passwords | AccessControlList


def decoy(name: str, key: bytes, *, cost: Cost = DEFAULT_COST) -> Passwords:
    """Return what stands in for the session *name*, which does not exist: no password fits it.

    How many levels it has is drawn from *name* with *key*, which is random bytes: the same name always costs the same,
    as it would if the session existed, and who does not know *key* cannot tell that the number was drawn.
    """
    _check_size("key", key, MIN_SALT_BYTES, MAX_SALT_BYTES)

    def drawn(what: str) -> bytes:
        # A name is whatever a stranger asked for: half a surrogate pair must not be an error here.
        return hmac.digest(key, f"{what}\0{name}".encode(errors="surrogatepass"), "sha256")

    levels = tuple(_SCHEMES)[int.from_bytes(drawn("levels")) % len(_SCHEMES)]
    return Passwords(
        **{
            level: PasswordHash(salt=drawn(f"salt of {level}"), digest=drawn(f"hash of {level}"), cost=cost)
            for level in levels
        }
    )


def read_access(access: str) -> Access:
    """Return the access that *access* spells, or raise ``InvalidValueError``, which quotes no part of a password."""
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
    """Return the bytes to hash: composed (NFC), because keyboards differ in how they spell the same letters."""
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
    limit = 2 * _MAX_MEMORY_BYTES  # OpenSSL refuses what needs more than it was told, and counts a little generously
    return hashlib.scrypt(password, salt=salt, n=cost.n, r=cost.r, p=cost.p, maxmem=limit, dklen=HASH_BYTES)
