"""A gate and an administrative server whose user the broker refuses: exit code 2, before anything starts."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.e2e.broker_process import BrokerProcess

from whimbrel.broker.access.passwords import Cost
from whimbrel.broker.access.users import Users
from whimbrel.carry.backbone.admin_service import AdminService
from whimbrel.carry.backbone.way_server_service import WayServerService
from whimbrel.cli.main import main
from whimbrel.cli.process import log_lines

RIGHTS = """
[[rule]]
user = "guest"
topics = ["campus-backbone/#"]
deny = ["subscribe", "publish"]
"""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return the port of a broker with the users gate and guest; the latter has no right to the backbone."""
    folder = tmp_path_factory.mktemp("guarded")
    users = Users.read(folder / "users", missing_ok=True)
    for name in ("gate", "guest"):
        users.add(name, f"{name}'s", cost=Cost(n=2**10))
    (folder / "rights.toml").write_text(RIGHTS, encoding="utf-8")
    options = ("--users", str(folder / "users"), "--rights", str(folder / "rights.toml"))
    with BrokerProcess(folder / "broker", *options) as broker:
        yield broker.port


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("", "the broker refused the connection: a user name and a password are needed (0x86 bad user name or"),
        (
            "--user gate --password-file guest",
            "the broker refused the connection: wrong user name or password (0x86 bad user",
        ),
        ("--user guest --password-file guest", "subscription to campus-backbone/"),
    ],
)
@pytest.mark.parametrize("command", ["admin", "way-server --name north --campus-key key"])
def test_refused_credentials_are_one_sentence_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, port: int, command: str,
    options: str, sentence: str,
) -> None:  # fmt: skip
    """It would run on without a broker, and only a warning in its log would say so."""
    _write_secrets(tmp_path)
    words = f"{command} --data admin --host 127.0.0.1 --port {port} {options}".split()
    for service in (AdminService, WayServerService):
        monkeypatch.setattr(service, "open", _fail)  # it would serve until somebody stops it
    monkeypatch.setattr(log_lines, "set_up_logging", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["whimbrel", "campus", *words])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {sentence}")
    assert said.count("\n") == 1


def test_the_right_credentials_start_the_admin_also_when_the_broker_is_away(tmp_path: Path, port: int) -> None:
    """The check keeps out nobody else: a gate must start after a power cut before its broker does."""
    _write_secrets(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        metrics = taken.getsockname()[1]
    said = f"--user gate --password-file gate --log-format json --metrics-port {metrics}".split()
    command = [sys.executable, "-m", "whimbrel", "campus", "admin", "--data", "admin", *said]
    for each, event in ((port, "connected to the broker"), (1, "no connection to the broker")):
        with subprocess.Popen([*command, "--port", str(each)], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as run:
            assert run.stderr is not None
            lines = [run.stderr.readline() for _ in range(2)]
            with urlopen(f"http://127.0.0.1:{metrics}/metrics") as answer:
                figures = answer.read().decode()
            run.send_signal(signal.SIGTERM)
            lines += run.stderr.readlines()
        assert f"whimbrel_campus_broker_connected {int(each == port)}\n" in figures
        assert "campus admin started" in lines[0]
        assert event in lines[1]
        assert ("campus admin stopped" in lines[-1], run.returncode) == (True, 0)


def _fail(_service: object) -> None:
    raise AssertionError("the service was opened")


def _write_secrets(folder: Path) -> None:
    for name, text in (("key", "0c" * 32), ("gate", "gate's\n"), ("guest", "guest's\n")):
        (folder / name).write_text(text, encoding="ascii")
        (folder / name).chmod(0o600)
