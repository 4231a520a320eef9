"""A restored broker asks for the passwords that the broker asked for whose data it has."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.raw_client import Kind, RawClient
from typer.testing import CliRunner

from whimbrel.broker.access.passwords import Cost
from whimbrel.broker.access.users import Users
from whimbrel.cli.main import app
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import Connect


def _connected(broker: BrokerProcess, user: str | None) -> int:
    """Return the code of the CONNACK that a client of *user* gets, whose password is the name."""
    with RawClient(broker.port) as client:
        password = None if user is None else user.encode()
        client.send(encode(Connect("lamp", version=5, username=user, password=password), 5))
        return client.receive(Kind.CONNACK).code


def _restored(data: Path, folder: Path) -> BrokerProcess:
    """Return the broker of a backup of *data*, made and restored with the commands."""
    for words in (
        ["backup", f"{folder}.backup", "--data", str(data)],
        ["restore", f"{folder}.backup", f"{folder}/data"],
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    return BrokerProcess(folder)


def _add(file: Path) -> None:
    Users.read(file, missing_ok=True).add("ann", "ann", cost=Cost(n=2**10))


def test_a_restored_broker_knows_the_users_of_the_data_folder(tmp_path: Path) -> None:
    """As it was: the users file was in no backup, and a restored broker let any client in."""
    with BrokerProcess(tmp_path / "one") as broker:
        pass
    _add(broker.data / "users")
    with broker:
        assert _connected(broker, None) == 0x86
    with _restored(broker.data, tmp_path / "two") as again:
        assert [_connected(again, user) for user in (None, "ann")] == [0x86, 0]


def test_a_restored_broker_does_not_serve_without_the_users_that_it_had(tmp_path: Path) -> None:
    """A users file that is elsewhere is in no backup; that there is one is."""
    _add(tmp_path / "elsewhere")
    with BrokerProcess(tmp_path / "one", "--users", str(tmp_path / "elsewhere")) as broker:
        assert _connected(broker, None) == 0x86
    again = _restored(broker.data, tmp_path / "two")
    with pytest.raises(AssertionError, match=r"elsewhere.*access\.users.*--insecure"):
        again.start()
    again.start("--users", str(tmp_path / "elsewhere"))
    with again:
        assert [_connected(again, user) for user in (None, "ann")] == [0x86, 0]
    again.start("--insecure")  # the operator's word: from now on it is a broker without users
    again.stop()
    with again:
        assert _connected(again, None) == 0
