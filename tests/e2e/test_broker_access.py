"""Two users of one broker, over real sockets: neither reads, destroys or takes over what is the other's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.raw_client import Kind, RawClient

from whimbrel.broker.access.passwords import Cost
from whimbrel.broker.access.users import Users
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import Connect
from whimbrel.mqtt.properties import Properties, Property

OWN_TOPICS = """default = "deny"
[[rule]]
topics = ["home/{user}/#"]
allow = ["publish", "subscribe"]
"""
OPERATOR = """
[[rule]]
user = "op"
topics = ["$whimbrel/session/#"]
allow = ["operate", "publish", "subscribe"]
"""


class _Guarded:
    """A broker with the users ann, bob and op, whose passwords are their names; its rights can be changed."""

    def __init__(self, folder: Path, rights: str, **access: int) -> None:
        self.users, self.rights = folder / "users", folder / "rights.toml"
        users = Users.read(self.users, missing_ok=True)
        for name in ("ann", "bob", "op"):
            users.add(name, name, cost=Cost(n=2**10))
        self.rights.write_text(rights, encoding="utf-8")
        options = ("--users", str(self.users), "--rights", str(self.rights))
        self.broker = BrokerProcess(folder / "broker", *options, settings={"access": access})

    def restart(self, rights: str) -> None:
        """Start it again with other rights."""
        self.rights.write_text(rights, encoding="utf-8")
        self.broker.restart()

    @contextmanager
    def client(
        self, client_id: str, user: str, *, version: int = 5, clean: bool = False, code: int = 0
    ) -> Iterator[RawClient]:
        """Yield a client of a user, whose CONNECT was answered with *code*."""
        with RawClient(self.broker.port, version=version) as client:
            properties = Properties({Property.SESSION_EXPIRY_INTERVAL: 3_600} if version == 5 else {})
            connect = Connect(
                client_id, clean_start=clean, keep_alive_s=0, version=version, username=user, password=user.encode(),
                properties=properties,
            )  # fmt: skip
            client.send(encode(connect, version))
            assert client.receive(Kind.CONNACK).code == code
            yield client


@pytest.mark.parametrize(
    "rights", [OWN_TOPICS, '[[rule]]\ntopics = ["home/ann/#"]\nuser = "bob"\ndeny = ["subscribe"]\n']
)
def test_another_user_with_the_same_client_identifier_gets_and_destroys_nothing(tmp_path: Path, rights: str) -> None:
    """As it was: bob read what was held for ann; and where a rule denied it to him, ann lost it."""
    guarded = _Guarded(tmp_path, rights)
    with guarded.broker, guarded.client("lamp", "ann") as lamp:
        with guarded.client("pda", "ann") as ann:
            assert ann.subscribe(("home/ann/#", 1)).codes == (1,)
        lamp.publish("home/ann/lamp", b"held")
        for version, code in ((5, 0x85), (4, 2)):
            for clean in (False, True):
                with guarded.client("pda", "bob", version=version, clean=clean, code=code) as bob:
                    assert bob.is_closed()
        with guarded.client("pda", "ann") as ann:
            assert ann.message().payload == b"held"
            with guarded.client("pda", "bob", clean=True, code=0x85) as bob:
                assert bob.is_closed()
            lamp.publish("home/ann/lamp", b"live")
            assert ann.message().payload == b"live"
        guarded.broker.kill()
        guarded.broker.start()
        with guarded.client("pda", "bob", code=0x85) as bob:
            assert bob.is_closed()


def test_rights_that_were_taken_away_are_taken_away_from_sessions_that_have_subscribed(tmp_path: Path) -> None:
    """Without a denial nobody asked again once a subscription was made."""
    both = '[[rule]]\ntopics = ["a", "b"]\nallow = ["publish", "subscribe"]\n'
    guarded = _Guarded(tmp_path, 'default = "deny"\n' + both)
    with guarded.broker:
        with guarded.client("pda", "ann") as ann:
            assert ann.subscribe(("a", 1), ("b", 1)).codes == (1, 1)
        with guarded.client("pump", "bob") as bob:
            bob.publish("a", b"held, not allowed")
            bob.publish("b", b"held")
        guarded.restart(
            'default = "deny"\n[[rule]]\nuser = "ann"\ntopics = ["b"]\nallow = ["subscribe"]\n'
            + both.replace("[[rule]]", '[[rule]]\nuser = "bob"')
        )
        with guarded.client("pda", "ann") as ann, guarded.client("pump", "bob") as bob:
            for qos in (0, 1):
                bob.publish("a", b"live, not allowed", qos)
                bob.publish("b", b"live", qos)
            bob.publish("b", b"end")
            assert [ann.message().payload for _ in range(4)] == [b"held", b"live", b"live", b"end"]


def test_an_operator_releases_a_session(tmp_path: Path) -> None:
    """With the command, and nobody else can."""
    guarded = _Guarded(tmp_path, '[[client]]\nids = ["*"]\n' + OPERATOR)
    secret = tmp_path / "password"
    with guarded.broker:
        with guarded.client("pda", "ann") as ann:
            ann.subscribe(("a", 1))
        command = [sys.executable, "-m", "whimbrel", "session", "release", "pda", "--port", str(guarded.broker.port)]
        for user, status, told in (
            ("bob", 1, "this needs the right operate"),
            ("op", 0, "pda: released, it was ann's"),
        ):
            secret.write_text(user, encoding="utf-8")
            asked = subprocess.run(
                [*command, "--user", user, "--password-file", str(secret)], capture_output=True, text=True, check=False
            )
            assert (asked.returncode, told in asked.stdout + asked.stderr) == (status, True), asked
        with guarded.client("pda", "bob") as bob:
            bob.publish("a", b"to himself")
            assert bob.message().payload == b"to himself"
        with guarded.client("pda", "ann", code=0x85) as ann:
            assert ann.is_closed()
    assert any("a session without an owner was adopted" in line for line in guarded.broker.lines)


def test_a_login_raises_what_the_hash_of_a_password_costs(tmp_path: Path) -> None:
    """To what the setting says, in the users file; those who did not log in keep theirs."""
    guarded = _Guarded(tmp_path, "", password_hash_mib=4)
    with guarded.broker, guarded.client("pda", "ann"):
        pass
    costs = {name: user.password.cost for name, user in Users.read(guarded.users)._state[0].items()}
    assert costs == {"ann": Cost(n=2**12), "bob": Cost(n=2**10), "op": Cost(n=2**10)}
    with guarded.broker, guarded.client("pda", "ann"):
        pass


def test_a_users_file_in_the_data_folder_counts_without_a_word(tmp_path: Path) -> None:
    """As it was: `user add` wrote the file, `serve` did not read it, and any client was let in."""
    broker = BrokerProcess(tmp_path, "--host", "0.0.0.0")  # noqa: S104 # refused without users
    with pytest.raises(AssertionError, match="--insecure"):
        broker.start()
    Users.read(broker.data / "users", missing_ok=True).add("ann", "ann", cost=Cost(n=2**10))
    with broker, RawClient(broker.port) as nameless:
        nameless.send(encode(Connect("lamp", version=5), 5))
        assert nameless.receive(Kind.CONNACK).code == 0x86
    assert [line for line in broker.lines if "users without TLS" in line and "warning" in line]
