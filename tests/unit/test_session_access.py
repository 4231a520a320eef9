"""Who may do what to a session: the paper's schemes (5.2.1), and passwords that nobody gets to see."""

from __future__ import annotations

import json
from traceback import format_exception
from typing import Any

import pytest

from whimbrel.broker.access import passwords
from whimbrel.broker.access.passwords import Access, Cost, PasswordHash, Passwords, decoy, read_access
from whimbrel.errors import InvalidValueError
from whimbrel.hold.access import ALL_RIGHTS, AccessControlList, Grant, Right
from whimbrel.model.facts import SessionChange, SessionChanged

SALT = b"sixteen bytes or more"
KEY = b"a key of the broker's own"
CHEAP = Cost(n=2, r=1)
READ = {Right.JOIN}
CHANGE = {Right.JOIN, Right.CHANGE_SUBSCRIPTIONS}


def _passwords(**words: str) -> Passwords:
    return Passwords.create(salt=SALT, cost=CHEAP, **words)


def _rights(of: Access, **asked: Any) -> set[Right]:
    """Return what *of* allows, asked one by one, which must be what it says at once."""
    allowed = {right for right in Right if of.allows(right, **asked)}
    assert of.rights(**asked) == allowed
    return allowed


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list that gets the salt of each hash that is computed."""
    salts: list[bytes] = []
    original = passwords._scrypt

    def counted(secret: bytes, salt: bytes, cost: Cost) -> bytes:
        salts.append(salt)
        return original(secret, salt, cost)

    monkeypatch.setattr(passwords, "_scrypt", counted)
    return salts


def _opened(session: Passwords, password: str) -> set[Right]:
    return _rights(session, password=password)


def test_one_password_gives_everything() -> None:
    """Whoever has the session's password is trusted."""
    session = _passwords(owner="one")
    assert _opened(session, "one") == ALL_RIGHTS
    assert _opened(session, "two") == set()


def test_with_two_levels_the_user_reads_and_the_admin_does_the_rest() -> None:
    """Anyone with the admin's password can even take the session over, by deleting it and creating it anew."""
    session = _passwords(user="u", admin="a")
    assert _opened(session, "u") == READ
    assert _opened(session, "a") == ALL_RIGHTS


def test_with_three_levels_only_the_owner_deletes() -> None:
    """Others may change the session, but its ownership cannot be seized."""
    session = _passwords(user="u", admin="a", owner="o")
    assert _opened(session, "u") == READ
    assert _opened(session, "a") == CHANGE
    assert _opened(session, "o") == ALL_RIGHTS


def test_a_password_of_two_levels_gives_the_rights_of_both() -> None:
    """And it cannot be seen from the hashes that they are equal."""
    session = _passwords(user="same", admin="same", owner="o")
    assert _opened(session, "same") == CHANGE
    assert session.user is not None
    assert session.admin is not None
    assert session.user.digest != session.admin.digest


@pytest.mark.parametrize("words", [{}, {"user": "u"}, {"admin": "a"}, {"user": "u", "owner": "o"}])
def test_other_combinations_of_levels_are_no_scheme(words: dict[str, str]) -> None:
    """A session that nobody can delete would stay for ever."""
    with pytest.raises(InvalidValueError, match="those of owner; of user and admin; or of user, admin and owner"):
        _passwords(**words)


def test_a_list_gives_rights_to_users_and_groups() -> None:
    """Rights add up: a user has their own and those of each group they are in; the owner has all."""
    session = AccessControlList(
        owner="ann",
        grants=(
            Grant(who="bob", rights=frozenset({Right.CHANGE_SUBSCRIPTIONS})),
            Grant(who="ward 3", rights=frozenset({Right.JOIN}), is_group=True),
        ),
    )
    assert _rights(session, user="ann") == ALL_RIGHTS
    assert _rights(session, user="bob", groups=["ward 3", "other"]) == CHANGE
    assert _rights(session, user="eve", groups=["ward 3"]) == READ
    assert _rights(session, user="ward 3") == set()
    assert _rights(session, user="eve", groups=["bob", "ann"]) == set()


@pytest.mark.parametrize("of", [_passwords(owner="o"), AccessControlList(owner="o")])
def test_nobody_may_do_nothing(of: Access) -> None:
    """Neither a password nor a user: not even the groups help. And no kind of access takes the other's proof."""
    assert _rights(of) == set()
    assert _rights(of, groups=["o"]) == set()
    other = {"user": "o"} if isinstance(of, Passwords) else {"password": "o"}
    assert _rights(of, **other) == set()


@pytest.mark.parametrize("password", ["one", "two", "three", "wrong", "", None, "x" * 2_000, "\0", "\ud800"])
def test_every_password_costs_the_same(computed: list[bytes], password: str | None) -> None:
    """The time of an answer must not tell at which level a guess was close."""
    session = _passwords(user="one", admin="two", owner="three")
    computed.clear()
    assert session.allows(Right.JOIN, password=password) is (password in {"one", "two", "three"})
    assert len(computed) == 3
    computed.clear()
    assert (session.rights(password=password) == set()) is (password not in {"one", "two", "three"})
    assert len(computed) == len(set(computed)) == 3


def _levels(of: Access) -> list[str]:
    return list(json.loads(of.to_text())["passwords"])


def test_a_decoy_is_the_same_each_time() -> None:
    """A session that exists does not change its cost from one question to the next either."""
    assert decoy("s", KEY) == decoy("s", KEY)
    assert decoy("s", KEY) != decoy("t", KEY)
    assert decoy("s", KEY) != decoy("s", KEY[::-1])


def test_decoys_have_the_levels_that_sessions_have() -> None:
    """Each scheme is about as frequent as the others, and which one a name has depends on the key."""
    schemes = [["owner"], ["user", "admin"], ["user", "admin", "owner"]]
    names = [f"session {number}" for number in range(600)]
    drawn, others = ([_levels(decoy(name, key)) for name in names] for key in (KEY, KEY[::-1]))
    assert all(150 < drawn.count(scheme) < 250 for scheme in schemes)
    assert all(levels in schemes for levels in drawn)
    assert 300 < sum(one != other for one, other in zip(drawn, others, strict=True)) < 500


@pytest.mark.parametrize("password", ["one", "", None, "\ud800", "x" * 2_000])
@pytest.mark.parametrize("name", ["", "s", "ü", "\0", "\ud800", "x" * 2_000])
def test_nobody_opens_a_decoy(computed: list[bytes], name: str, password: str | None) -> None:
    """Whatever it is asked, the answer is no, and it was computed as for a session that exists."""
    session = decoy(name, KEY, cost=CHEAP)
    assert session.rights(password=password, user=name, groups=[name]) == set()
    assert len(computed) == len(set(computed)) == len(_levels(session))


def test_a_decoy_costs_what_a_new_session_does() -> None:
    """Scrypt's cost is most of the time of an answer."""
    assert {hashed.cost for hashed in (decoy("s", KEY).admin, decoy("s", KEY).owner) if hashed} == {
        passwords.DEFAULT_COST
    }


@pytest.mark.parametrize("key", [b"", b"short", b"x" * 65])
def test_a_key_of_decoys_cannot_be_guessed(key: bytes) -> None:
    """With the key anybody could compute which sessions there are not; it is not shown either."""
    with pytest.raises(InvalidValueError, match=f"key: found {len(key)} bytes, allowed is 16 to 64 bytes"):
        decoy("s", key)


@pytest.mark.parametrize("password", ["", "secret" * 200, "secret\0", "secret\ud800"])
def test_what_cannot_be_a_password_is_refused_and_not_shown(password: str) -> None:
    """Errors are logged."""
    with pytest.raises(InvalidValueError, match="a password must be ") as caught:
        _passwords(owner=password)
    assert "secret" not in str(caught.value) + repr(caught.value.args)


def test_a_password_may_be_typed_on_any_keyboard() -> None:
    """The same letters, composed on one device and combined on another."""
    assert _opened(_passwords(owner="é"), "e\N{COMBINING ACUTE ACCENT}") == ALL_RIGHTS


def test_neither_passwords_nor_hashes_are_printed() -> None:
    """A log line with a session in it must not be worth stealing."""
    hashed = PasswordHash.of("secret", salt=SALT, cost=CHEAP)
    for printed in (repr(hashed), repr(_passwords(owner="secret"))):
        assert "secret" not in printed
        assert "digest" not in printed
        assert "salt" not in printed


@pytest.mark.parametrize("salt", [b"", b"short", b"x" * 65])
def test_a_salt_is_long_enough_to_be_fresh(salt: bytes) -> None:
    """And short enough to be a salt."""
    with pytest.raises(InvalidValueError, match="allowed is 16 to 64 bytes"):
        Passwords.create(salt=salt, owner="o", cost=CHEAP)


@pytest.mark.parametrize(
    ("cost", "what"),
    [
        ({"n": 2**40}, "scrypt n"),
        ({"n": 3}, "power of two"),
        ({"n": 1}, "scrypt n"),
        ({"n": 2**17, "r": 9}, "scrypt memory"),
        ({"n": 2**17, "r": 8, "p": 3}, "scrypt work"),
        ({"p": 2**30}, "scrypt p"),
    ],
)
def test_a_cost_that_would_stop_the_machine_is_refused(cost: dict[str, int], what: str) -> None:
    """Whoever can write an access must not be able to halt the broker with the next join."""
    with pytest.raises(InvalidValueError, match=what):
        Cost(**cost)
    tree = json.loads(_passwords(owner="o").to_text())
    tree["passwords"]["owner"] |= cost
    with pytest.raises(InvalidValueError, match=what):
        read_access(json.dumps(tree))


def test_the_dearest_cost_that_is_allowed_can_be_computed() -> None:
    """OpenSSL has a limit of its own."""
    session = Passwords.create(salt=SALT, owner="o", cost=Cost(n=2**17, r=8, p=1))
    assert session.rights(password="o") == ALL_RIGHTS  # noqa: S106 # nobody's


@pytest.mark.parametrize(
    "session",
    [
        _passwords(owner="o"),
        _passwords(user="u", admin="a"),
        _passwords(user="u", admin="a", owner="o"),
        AccessControlList(owner="ann"),
        AccessControlList(
            owner="ünn", grants=(Grant(who="b", rights=ALL_RIGHTS), Grant(who="b", rights=frozenset(), is_group=True))
        ),
    ],
)
def test_access_comes_back_from_its_text(session: Access) -> None:
    """The log keeps the text, as part of the fact that a session was created."""
    fact = SessionChanged(
        node="n", seq=0, changed_at=0, session="s", change=SessionChange.CREATED, access=session.to_text()
    )
    assert fact.access is not None
    assert read_access(fact.access) == session
    assert hash(read_access(fact.access)) == hash(session)


def _owned(hashed: str) -> str:
    return f'{{"passwords":{{"owner":{hashed}}}}}'


_HASH = '{"n":2,"r":1,"p":1,"salt":"' + "00" * 16 + '","hash":"' + "00" * 32 + '"}'


@pytest.mark.parametrize(
    "hostile",
    [
        "",
        "hunter2",
        "[]",
        "{}",
        '{"hunter2":1}',
        '{"passwords":{}}',
        '{"passwords":{"hunter2":1}}',
        '{"passwords":{"owner":"hunter2"}}',
        f'{{"passwords":{{"owner":{_HASH},"owner":{_HASH}}}}}',
        f'{{"passwords":{{"owner":{_HASH}}},"list":{{}}}}',
        _owned(_HASH.replace("00", "zz")),
        _owned(_HASH.replace("00", "é")),
        _owned(_HASH.replace('"n":2', '"n":true')),
        _owned(_HASH.replace('"n":2', '"n":2.0')),
        _owned(_HASH.replace('"n"', '"hunter2":1,"n"')),
        '{"list":{"owner":"a","users":{},"groups":{},"hunter2":0}}',
        '{"list":{"owner":7,"users":{},"groups":{}}}',
        '{"list":{"owner":"a","users":{"":[]},"groups":{}}}',
        '{"list":{"owner":"a","users":{"b":["hunter2"]},"groups":{}}}',
        '{"list":{"owner":"a","users":{"b":[["join"]]},"groups":{}}}',
        '{"list":{"owner":"a","users":{"b":"join"},"groups":{}}}',
        '{"list":{"owner":"\\ud800","users":{},"groups":{}}}',
        "[" * 70_000,
        " " * 70_000 + "{}",
        "\ud800",
    ],
)
def test_a_text_that_is_no_access_is_refused_and_not_quoted(hostile: str) -> None:
    """People paste passwords into the wrong place."""
    with pytest.raises(InvalidValueError) as caught:
        read_access(hostile)
    assert "hunter2" not in "".join(format_exception(caught.value))


def test_a_name_stands_once_in_a_list() -> None:
    """Two entries would have to be added up, or one would be lost on the way through the log."""
    grants = (Grant(who="b", rights=ALL_RIGHTS), Grant(who="b", rights=frozenset()))
    with pytest.raises(InvalidValueError, match="one for each user and group"):
        AccessControlList(owner="a", grants=grants)


def test_a_list_that_is_too_long_for_the_log_is_refused() -> None:
    """Before it is half written."""
    grants = tuple(Grant(who=f"user {number}", rights=ALL_RIGHTS) for number in range(2_000))
    with pytest.raises(InvalidValueError, match="at most 65536 bytes"):
        AccessControlList(owner="a", grants=grants).to_text()
