"""The users file: who may connect, with passwords that nobody gets to see."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from traceback import format_exception

import pytest

from whimbrel.broker.access import passwords
from whimbrel.broker.access import users as module
from whimbrel.broker.access.passwords import Cost
from whimbrel.broker.access.users import Users, check_group, check_user_name
from whimbrel.broker.settings.fields import ConfigError
from whimbrel.errors import InvalidValueError

CHEAP = Cost(n=2, r=1)
HASH = "scrypt$2$1$1$" + "A" * 22 + "==$" + "A" * 43 + "="


def _users(path: Path) -> Users:
    users = Users.read(path, missing_ok=True)
    users.add("ann", "secret", groups=["ops", "day"], cost=CHEAP)
    users.add("bob", "word", cost=CHEAP)
    return users


def _refusal(path: Path, text: str) -> str:
    path.write_bytes(text.encode())
    with pytest.raises(ConfigError) as raised:
        Users.read(path)
    return str(raised.value).removeprefix(f"{path}: ")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the users file of a test is."""
    return tmp_path / "users"


def test_what_was_added_is_read_back(path: Path) -> None:
    """The command that adds and the broker that asks meet only in the file."""
    _users(path)
    users = Users.read(path)
    assert users.names() == ["ann", "bob"]
    assert users.groups("ann") == {"ops", "day"}
    assert users.groups("bob") == users.groups("nobody") == frozenset()
    assert users.verify("ann", "secret")
    assert users.verify("bob", b"word")


@pytest.mark.parametrize("password", ["word", b"word", "", b"", None, b"\xff", "x" * 5000, "a\0b"])
def test_any_other_password_is_refused(path: Path, password: str | bytes | None) -> None:
    """Whatever a client sends is an answer, never an error."""
    assert not _users(path).verify("ann", password)


def test_nobody_is_let_in_where_there_are_no_users(path: Path) -> None:
    """An empty file is a closed door."""
    path.touch()
    assert not Users.read(path).verify("ann", "secret")
    assert Users.read(path).names() == []


def test_a_known_password_does_not_help_an_unknown_name(path: Path) -> None:
    """The hash that stands in for the unknown is somebody's, and must not count."""
    users = Users.read(path, missing_ok=True)
    users.add("ann", "secret", cost=CHEAP)
    assert not users.verify("eve", "secret")


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> list[Cost]:
    """Return the list into which the cost of every hash is put, from here on."""
    spent: list[Cost] = []
    real = passwords._scrypt

    def counted(secret: bytes, salt: bytes, cost: Cost) -> bytes:
        spent.append(cost)
        return real(secret, salt, cost)

    monkeypatch.setattr(passwords, "_scrypt", counted)
    return spent


@pytest.mark.parametrize("password", ["secret", "wrong", None, b"\xff"])
def test_unknown_names_cost_what_known_ones_cost(path: Path, costs: list[Cost], password: str | bytes | None) -> None:
    """The time an answer takes must not tell who is a user here."""
    users = _users(path)
    costs.clear()
    for name in ("ann", "bob", "eve", ""):
        users.verify(name, password)
    assert costs == [CHEAP] * 4


def test_a_file_without_users_costs_what_one_with_users_costs(path: Path, costs: list[Cost]) -> None:
    """That nobody is a user here is nobody's business either."""
    path.touch()
    Users.read(path).verify("ann", "secret")
    assert costs == [passwords.DEFAULT_COST]


DEARER = Cost(n=4, r=1)


def test_a_hash_that_costs_too_little_is_raised_with_the_next_login(path: Path) -> None:
    """What guessing costs has to grow with machines, and nobody asks all users for their passwords for that."""
    users = _users(path)
    assert not users.log_in("ann", "wrong", cost=DEARER)
    assert path.read_text(encoding="utf-8").count("scrypt$2$1$1$") == 2
    assert users.log_in("ann", b"secret", cost=DEARER)
    (raised,) = [line for line in path.read_text(encoding="utf-8").splitlines() if "scrypt$4$1$1$" in line]
    assert raised.startswith("ann:")
    assert raised.endswith(":day,ops")
    for asked in (users, Users.read(path)):
        assert asked.verify("ann", "secret")
        assert not asked.verify("ann", "wrong")
        assert asked.groups("ann") == {"ops", "day"}
    assert path.stat().st_mode & 0o777 == 0o600


def test_raising_overwrites_no_change_that_was_made_meanwhile(path: Path) -> None:
    """An administrator who gives another password, or removes a user, has the last word."""
    running = _users(path)
    elsewhere = Users.read(path)
    elsewhere.add("ann", "new", groups=["night"], cost=CHEAP)
    elsewhere.remove("bob")
    assert running.log_in("ann", "secret", cost=DEARER)
    assert running.log_in("bob", "word", cost=DEARER)
    after = Users.read(path)
    assert after.names() == ["ann"]
    assert after.verify("ann", "new")
    assert after.groups("ann") == {"night"}
    assert running.groups("ann") == {"ops", "day"}, "groups are those that were read when the broker started"


def test_a_file_that_cannot_be_written_keeps_nobody_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may belong to an administrator; in memory the hash is raised all the same."""
    users = _users(path)

    def fail(*_: object) -> None:
        raise PermissionError(13, "not yours")

    monkeypatch.setattr(module, "_put", fail)
    assert users.log_in("ann", "secret", cost=DEARER)
    assert "scrypt$4$" not in path.read_text(encoding="utf-8")
    assert users._state[0]["ann"].password.cost == DEARER


def test_a_file_of_another_account_stays_as_it_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its owner could not read it any more."""
    users = _users(path)
    monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    assert users.log_in("ann", "secret", cost=DEARER)
    assert "scrypt$4$" not in path.read_text(encoding="utf-8")


def test_a_password_that_was_right_is_not_hashed_again(path: Path, costs: list[Cost]) -> None:
    """A fleet that comes back must not wait for most of a second of scrypt for each device."""
    users = _users(path)
    costs.clear()
    assert users.log_in("ann", "secret", cost=CHEAP)
    assert users.log_in("ann", b"secret", cost=CHEAP)
    assert costs == [CHEAP]
    assert not users.log_in("ann", "wrong", cost=CHEAP)
    assert costs == [CHEAP] * 2
    users.add("ann", "new", cost=CHEAP)
    assert not users.log_in("ann", "secret", cost=CHEAP)


def test_logins_in_threads_raise_every_user(path: Path) -> None:
    """Two that come at once must not lose each other's hashes."""
    users = Users.read(path, missing_ok=True)
    for number in range(8):
        users.add(f"user {number}", "secret", cost=CHEAP)
    with ThreadPoolExecutor(4) as pool:
        names = [f"user {number}" for number in range(8)] * 3
        assert all(pool.map(lambda name: users.log_in(name, "secret", cost=DEARER), names))
    assert path.read_text(encoding="utf-8").count("scrypt$4$1$1$") == 8
    assert {user.password.cost for user in users._state[0].values()} == {DEARER}


def test_the_default_is_todays_recommendation() -> None:
    """OWASP's, for scrypt: n of 2 to the 17, r of 8, p of 1."""
    assert Cost(n=2**17, r=8, p=1) == passwords.DEFAULT_COST


def test_questions_may_be_asked_in_threads(path: Path) -> None:
    """Hashing would stop an event loop, so the broker asks elsewhere."""
    users = _users(path)
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(users.verify, ["ann", "bob", "eve"] * 20, ["secret"] * 60)
    assert list(answers) == [True, False, False] * 20


def test_adding_again_changes_the_password_and_keeps_the_groups(path: Path) -> None:
    """People forget passwords more often than they change jobs."""
    users = _users(path)
    assert not users.add("ann", "new", cost=CHEAP)
    assert users.verify("ann", "new")
    assert not users.verify("ann", "secret")
    assert Users.read(path).groups("ann") == {"ops", "day"}
    users.add("ann", "new", groups=[], cost=CHEAP)
    assert Users.read(path).groups("ann") == frozenset()


def test_a_removed_user_is_gone(path: Path) -> None:
    """Both from the file and from those who have read it here."""
    users = _users(path)
    assert users.remove("ann")
    assert not users.remove("ann")
    assert users.names() == Users.read(path).names() == ["bob"]
    assert not users.verify("ann", "secret")


def test_comments_and_blank_lines_stay_where_they_are(path: Path) -> None:
    """What people wrote into the file is theirs."""
    path.write_text(f"# the ward\nann:{HASH}\n\n#bob:{HASH}\nbob:{HASH}:day\n# end", encoding="utf-8")
    users = Users.read(path)
    users.add("eve", "x", cost=CHEAP)
    users.remove("bob")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[:5] == ["# the ward", f"ann:{HASH}", "", f"#bob:{HASH}", "# end"]
    assert lines[5].startswith("eve:scrypt$2$1$1$")


def test_changes_of_two_who_read_the_same_file_are_both_kept(path: Path) -> None:
    """Two administrators at once must not undo each other."""
    one, other = Users.read(path, missing_ok=True), Users.read(path, missing_ok=True)
    one.add("ann", "x", cost=CHEAP)
    other.add("bob", "x", cost=CHEAP)
    assert other.names() == Users.read(path).names() == ["ann", "bob"]


def test_only_the_owner_may_read_the_file_and_nothing_is_left_beside_it(path: Path) -> None:
    """Hashes are worth stealing, and a half-written file worth nothing."""
    path.touch(mode=0o644)
    _users(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(each.name for each in path.parent.iterdir()) == [".users.lock", "users"]


def test_a_failed_write_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk must not lock everybody out."""
    users = _users(path)
    before = path.read_bytes()

    def fail(_source: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("whimbrel.broker.access.users.rename", fail)
    with pytest.raises(OSError, match="No space"):
        users.remove("ann")
    assert path.read_bytes() == before
    assert users.names() == ["ann", "bob"]
    assert sorted(each.name for each in path.parent.iterdir()) == [".users.lock", "users"]


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    """Where the file really is was somebody's decision."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real" / "users")
    Users.read(link, missing_ok=True).add("ann", "x", cost=CHEAP)
    assert link.is_symlink()
    assert Users.read(tmp_path / "real" / "users").names() == ["ann"]


@pytest.mark.parametrize("name", ["a", "ann@example", "Ann Bo", "é" * 127, "a#b", "a,b", "*"])
def test_names_may_be_nearly_anything(path: Path, name: str) -> None:
    """Names come from elsewhere: mail addresses, serial numbers, people."""
    users = Users.read(path, missing_ok=True)
    users.add(name, "x", cost=CHEAP)
    assert Users.read(path).names() == [name]
    assert users.remove(name)


@pytest.mark.parametrize("name", ["", "a:b", "a\nb", "a\tb", "a\x7f", "a\u2028b", "a\x85", "#a", " a", "a ", "é" * 128])
def test_names_that_would_break_the_file_are_refused(path: Path, name: str) -> None:
    """Nobody becomes two users, or a comment."""
    with pytest.raises(InvalidValueError, match="user name"):
        check_user_name(name)
    with pytest.raises(InvalidValueError):
        Users.read(path, missing_ok=True).add(name, "x", cost=CHEAP)
    assert not path.exists()


def test_a_group_has_no_comma_in_its_name(path: Path) -> None:
    """One group must not read back as two."""
    with pytest.raises(InvalidValueError, match="group name"):
        check_group("a,b")
    with pytest.raises(InvalidValueError, match="group name"):
        Users.read(path, missing_ok=True).add("ann", "x", groups=["a:b"], cost=CHEAP)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ann", "line 1: expected name:scrypt$n$r$p$salt$hash"),
        ("ann:password", "line 1: expected name:scrypt"),
        (f"ann:{HASH}\n:{HASH}", "line 2: user name: found ''"),
        (f"ann:{HASH}\nbob:{HASH}\nann:{HASH}", "line 3: found 'ann', allowed is a user who is not in a line above"),
        (f"ann:{HASH}:a,,b", "line 1: group name: found ''"),
        (f"ann:{HASH}:a:b", "line 1: group name: found 'a:b'"),
        (f"ann:{HASH[:-5]}", "line 1: "),
        (f"ann:{HASH.replace('$2$', '$1073741824$', 1)}", "line 1: expected name:scrypt"),
        (f"ann:{HASH.replace('$2$', '$524288$', 1)}", "line 1: scrypt n: found 524288, allowed is an integer from 2"),
        ("ann:scrypt$2$1$1$AAAA$AAAA", "line 1: salt: found 3 bytes, allowed is 16 to 64 bytes"),
        (f"ann :{HASH}", "line 1: user name: found 'ann '"),
    ],
)
def test_a_bad_line_is_named(path: Path, text: str, message: str) -> None:
    """A broker that cannot know its users must not start, and say why."""
    assert _refusal(path, text).startswith(message)


def test_lines_may_end_as_other_systems_end_them(path: Path) -> None:
    """Somebody will edit it with an editor that adds carriage returns."""
    path.write_bytes(f"ann:{HASH}\r\n\r\nbob:{HASH}:day\r\n".encode())
    assert Users.read(path).names() == ["ann", "bob"]
    assert Users.read(path).groups("bob") == {"day"}


def test_errors_quote_neither_password_nor_hash(path: Path) -> None:
    """Errors end up in logs that many may read."""
    path.write_text("ann:hunter2:scrypt$salt\n", encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        Users.read(path)
    assert "hunter2" not in "".join(format_exception(raised.value))
    with pytest.raises(InvalidValueError) as refused:
        Users.read(path.with_name("other"), missing_ok=True).add("ann", "hunter2" * 1000, cost=CHEAP)
    assert "hunter2" not in str(refused.value)


def test_a_file_that_is_not_there_is_an_error_unless_it_is_to_be_made(path: Path) -> None:
    """A broker whose users file is misspelt must not let everybody in."""
    with pytest.raises(ConfigError, match="there is no such file"):
        Users.read(path)
    assert Users.read(path, missing_ok=True).names() == []
