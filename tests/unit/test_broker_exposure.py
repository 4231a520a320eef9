"""Who can connect from where: users files that are found, and brokers that refuse to stand open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from whimbrel.broker.access.passwords import Cost
from whimbrel.broker.access.users import Users
from whimbrel.broker.settings.config import Config, ListenerSettings
from whimbrel.broker.settings.fields import ConfigError
from whimbrel.broker.shell.net.web_hosts import is_loopback
from whimbrel.broker.shell.operate.exposure import check_exposure, exposures, with_users_of_data

ANYWHERE = "0.0.0.0"  # noqa: S104 # no test listens on it


def _config(tmp_path: Path, **values: object) -> Config:
    named = {name.replace("__", "."): value for name, value in values.items()}
    return Config().with_overrides({"node.data": str(tmp_path), **named})


def test_a_users_file_in_the_data_folder_is_used(tmp_path: Path) -> None:
    """`whimbrel user add` and `whimbrel serve` agree where it is; one that is named goes before it."""
    assert with_users_of_data(_config(tmp_path)).access.users == ""
    Users.read(tmp_path / "users", missing_ok=True).add("ann", "x", cost=Cost.of_memory(1))
    assert with_users_of_data(_config(tmp_path)).access.users == str(tmp_path / "users")
    assert with_users_of_data(_config(tmp_path, access__users="other")).access.users == "other"


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True), (ANYWHERE, False), ("::", False),
        ("", False), ("10.0.0.7", False), ("fe80::1%eth0", False), ("broker.example", False),
    ],
)  # fmt: skip
def test_what_is_not_surely_loopback_is_beyond_it(host: str, is_here: bool) -> None:  # noqa: FBT001 # a case
    """An empty host is every address, and a name may be anywhere."""
    assert is_loopback(host) is is_here


def test_a_broker_without_users_does_not_stand_open_by_accident(tmp_path: Path) -> None:
    """Beyond loopback it needs users, or certificates on every port, or the operator's word."""
    with pytest.raises(ConfigError, match=r"whimbrel user add NAME --data .*--insecure"):
        check_exposure(_config(tmp_path, listen__host=ANYWHERE))
    check_exposure(_config(tmp_path))
    check_exposure(_config(tmp_path, listen__host=ANYWHERE, access__insecure=True))
    check_exposure(_config(tmp_path, listen__host=ANYWHERE, access__users="users"))
    secured = {"listen__host": ANYWHERE, "listen__port": -1, "listen__tls_port": 0, "tls__certificate": "c"}
    secured |= {"tls__key": "k", "tls__client_ca": "ca"}
    with pytest.raises(ConfigError):
        check_exposure(_config(tmp_path, **secured))
    check_exposure(_config(tmp_path, **secured, tls__require_client_certificate=True))


def test_each_exposure_is_one_line(tmp_path: Path) -> None:
    """No users is said on loopback too; passwords that cross a network unencrypted are a warning."""

    def lines(**values: object) -> list[tuple[str, str]]:
        return [(each.level, each.text.split(":")[0]) for each in exposures(_config(tmp_path, **values))]

    assert lines() == [("info", "no users")]
    assert lines(listen__host=ANYWHERE, access__insecure=True) == [("warning", "no users")]
    assert lines(access__users="u") == []
    assert lines(access__users="u", listen__host=ANYWHERE) == [("warning", "users without TLS")]
    tls = {"listen__port": -1, "listen__tls_port": 0, "tls__certificate": "c", "tls__key": "k"}
    assert lines(access__users="u", listen__host=ANYWHERE, **tls) == []
    anonymous = lines(access__users="u", access__anonymous=True, listen__host=ANYWHERE, **tls)
    assert anonymous == [("warning", "clients of other machines may connect without a user name (access.anonymous)")]


def test_listeners_with_settings_of_their_own_are_looked_at_too(tmp_path: Path) -> None:
    """Each of them could be the one that stands open; a Unix socket is reached by no other machine."""

    def config(**values: object) -> Config:
        listener = replace(ListenerSettings(name="more", port=0, host=ANYWHERE), **values)  # type: ignore[arg-type] # as in a file
        return replace(_config(tmp_path), listeners=(listener,))

    with pytest.raises(ConfigError, match=r"listener more lets other machines in at 0\.0\.0\.0.*--insecure"):
        check_exposure(config())
    check_exposure(config(users="users"))
    check_exposure(config(host="127.0.0.1"))
    check_exposure(config(port=-1, socket="s"))
    said = [each.text for each in exposures(config(users="users", anonymous=True)) if each.level == "warning"]
    assert [text.rpartition(" to ")[2] for text in said] == ["listener more", "listener more"]
