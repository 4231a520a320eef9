"""The users files of a broker and its listeners, read again while it serves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from whimbrel.broker.access.passwords import Cost
from whimbrel.broker.access.users import Users
from whimbrel.broker.settings.config import AccessSettings, Config, NodeSettings
from whimbrel.broker.settings.fields import ConfigError
from whimbrel.broker.settings.listeners import ListenerSettings
from whimbrel.broker.shell.operate.reloading import Reloading, restart_needed
from whimbrel.broker.shell.operate.user_files import UserFiles

CHEAP = Cost(n=2, r=1)


def _file(path: Path, **passwords: str) -> str:
    path.unlink(missing_ok=True)
    users = Users.read(path, missing_ok=True)
    for name, password in passwords.items():
        users.add(name, password, cost=CHEAP)
    return str(path)


def _config(tmp_path: Path, users: str, *listeners: ListenerSettings) -> Config:
    access = AccessSettings(users=users, password_hash_mib=1)
    return Config(node=NodeSettings(data=str(tmp_path / "data")), access=access, listeners=listeners)


def test_each_file_is_read_again_and_its_changed_users_are_named(tmp_path: Path) -> None:
    """A listener's users are revoked like those of [access]."""
    main, own = _file(tmp_path / "main", ann="a", bob="b"), _file(tmp_path / "own", eve="e", kim="k")
    config = _config(tmp_path, main, ListenerSettings(name="garden", port=0, users=own))
    files = UserFiles.of(config)
    verify = files.verify_with(own)
    assert verify is not None
    assert verify("eve", b"e")
    _file(tmp_path / "own", eve="other", kim="k")
    users = Users.read(Path(main))
    users.remove("bob")
    changes = files.take(UserFiles.of(config))
    assert changes.revoked == {"bob", "eve", "kim"}  # the hash of kim's password has another salt
    assert not verify("eve", b"e")
    assert verify("eve", b"other")
    assert len(files) == 3


def test_where_another_file_counts_all_users_of_the_one_before_connect_again(tmp_path: Path) -> None:
    """Although a listener may still have it: through which of the two a user came is not known here."""
    first, second = _file(tmp_path / "first", ann="a"), _file(tmp_path / "second", bob="b")
    garden = ListenerSettings(name="garden", port=0, users=first)
    files = UserFiles.of(_config(tmp_path, first, garden))
    assert files.take(UserFiles.of(_config(tmp_path, second, garden))).revoked == {"ann"}
    assert files.take(UserFiles.of(_config(tmp_path, second))).revoked == {"ann"}


def test_a_name_in_two_files_is_refused(tmp_path: Path) -> None:
    """Rights and sessions go by names."""
    main, own = _file(tmp_path / "main", ann="a"), _file(tmp_path / "own", ann="b")
    with pytest.raises(ConfigError, match=r"ann is in .*main and in .*own"):
        UserFiles.of(_config(tmp_path, main, ListenerSettings(name="garden", port=0, users=own)))


def test_the_rules_of_a_listener_follow_the_users_of_access(tmp_path: Path) -> None:
    """One without users of its own asks for those of [access], from the reload on that brought them."""
    garden = ListenerSettings(name="garden", port=0)
    now = [_config(tmp_path, "", garden)]
    with ThreadPoolExecutor(1) as pool:
        reloading = Reloading(now[0], pool, reread=lambda: now[0])
        rules = reloading.rules_of(garden)
        assert (rules.verify, rules.admits_anonymous) == (None, True)
        now[0] = _config(tmp_path, _file(tmp_path / "main", ann="a"), garden)
        config, files = reloading._read()
        reloading.config = config
        reloading.files.users.take(files.users)
        reloading._set_rules()
    assert rules.verify is not None
    assert not rules.admits_anonymous
    assert rules.verify("ann", b"a")


def test_listeners_themselves_need_a_restart(tmp_path: Path) -> None:
    """Their ports stay open as they are."""
    before, after = _config(tmp_path, ""), _config(tmp_path, "", ListenerSettings(name="garden", port=0))
    assert list(restart_needed(before, after)) == ["listener"]
