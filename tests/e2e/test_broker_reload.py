"""SIGHUP and ``whimbrel reload`` under load: no connection is dropped but a revoked user's, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.certificates import Authority

from whimbrel.broker.access.passwords import Cost
from whimbrel.broker.access.users import Users
from whimbrel.broker.shell.operate.asking import ask_broker
from whimbrel.client import Client, ConnectRefusedError, DismissedError, Tls

_QUICK = Cost(n=2**10)
_PAIRS, _MESSAGES = 4, 40
_RIGHTS = """[[rule]]
user = "ann"
topics = ["secret/#"]
allow = ["subscribe"]
[[rule]]
topics = ["secret/#"]
deny = ["subscribe"]
"""


class _Guarded:
    """A broker with users, rights and TLS; its files are in *folder*."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.authority = folder, Authority(folder)
        self.put_certificate("first")
        self.rights = folder / "rights.toml"
        self.rights.write_text(_RIGHTS, encoding="utf-8")
        self.broker = BrokerProcess(
            folder, "--rights", str(self.rights), "--tls-port", "0", "--tls-certificate", str(folder / "served.pem"),
            "--tls-key", str(folder / "served.key"),
        )  # fmt: skip
        self.users = Users.read(self.broker.data / "users", missing_ok=True)
        for name in ("ann", "bob", "eve"):
            self.users.add(name, name, cost=_QUICK)

    def put_certificate(self, name: str) -> bytes:
        """Let another certificate be the one to serve; return it as DER."""
        certificate, key = self.authority.sign(name, "localhost")
        shutil.copy(certificate, self.folder / "served.pem")
        shutil.copy(key, self.folder / "served.key")
        return ssl.PEM_cert_to_DER_cert(certificate.read_text(encoding="utf-8"))

    def client(self, user: str, client_id: str, *, is_secured: bool = False) -> Client:
        """Return a client that does not come back when its connection is lost."""
        tls = Tls(ca=self.authority.root, server_name="localhost") if is_secured else None
        port = self.broker.ports["mqtts" if is_secured else "mqtt"]
        return Client(
            "127.0.0.1", port, client_id=client_id, username=user, password=user.encode(), reconnect=None, tls=tls
        )

    def served(self) -> bytes:
        """Return the certificate that a new connection is served."""
        context = ssl.create_default_context(cafile=self.authority.root)
        plain = socket.create_connection(("127.0.0.1", self.broker.ports["mqtts"]))
        with context.wrap_socket(plain, server_hostname="localhost") as secured:
            found = secured.getpeercert(binary_form=True)
            assert found is not None
            return found


def _ask(data: Path, name: str) -> dict[str, object]:
    return dict(ask_broker(data, name))


def test_a_reload_under_load_drops_only_the_revoked(tmp_path: Path) -> None:
    """Every message of the others arrives, over the connections there were; the new certificate is served."""
    guarded = _Guarded(tmp_path)
    with guarded.broker as broker:
        asyncio.run(asyncio.wait_for(_load(guarded, broker), 120))
    text = "".join(broker.lines)
    assert text.count("reloaded: ") >= 4
    assert "Traceback" not in text


async def _load(guarded: _Guarded, broker: BrokerProcess) -> None:
    async with asyncio.TaskGroup() as group:
        is_over = asyncio.Event()
        pairs = [group.create_task(_pair(guarded, number, is_over)) for number in range(_PAIRS)]
        async with guarded.client("eve", "eve") as eve, guarded.client("bob", "other") as other:
            first = guarded.served()
            guarded.users.remove("eve")
            served = guarded.put_certificate("second")
            assert served != first
            os.kill(broker.pid, signal.SIGHUP)
            with pytest.raises(DismissedError, match="0x87"):
                await anext(eve.messages())
            done = [await asyncio.to_thread(_ask, broker.data, "reload") for _ in range(3)]
            assert all(each["ok"] for each in done)
            assert await asyncio.to_thread(guarded.served) == served
            with pytest.raises(ConnectRefusedError):
                async with guarded.client("eve", "eve-again"):
                    pass
            await other.publish("still/here", b"x", qos=1)
            is_over.set()
    assert all(each.result() >= _MESSAGES for each in pairs)


async def _pair(guarded: _Guarded, number: int, is_over: asyncio.Event) -> int:
    """Publish over TLS and over TCP until all reloads are over; return how many came, in order."""
    topic, at = f"load/{number}", 0
    async with (
        guarded.client("ann", f"from-{number}", is_secured=number % 2 == 0) as sender,
        guarded.client("bob", f"to-{number}", is_secured=number % 2 == 1) as receiver,
    ):
        await receiver.subscribe(topic, qos=1)
        while at < _MESSAGES or not is_over.is_set():
            await sender.publish(topic, str(at), qos=1)
            assert (await anext(receiver.messages())).payload == str(at).encode()
            at += 1
    return at


def test_a_bad_file_leaves_everything_as_it_was_and_says_so(tmp_path: Path) -> None:
    """Users, rights and certificates are read before anything is changed."""
    guarded = _Guarded(tmp_path)
    with guarded.broker as broker:
        before = guarded.served()
        guarded.users.remove("eve")
        users = broker.data / "users"
        for path, bad, named in (
            (guarded.rights, "[[rule]]\ntopics = 3\n", "rule 1"),
            (users, "no hash here\n", "line 1"),
            (tmp_path / "served.key", "no key", "in PEM"),
        ):
            good = path.read_bytes()
            path.write_text(bad, encoding="utf-8")
            answer = _ask(broker.data, "reload")
            assert answer["ok"] is False
            assert named in str(answer["reason"])
            path.write_bytes(good)
        users.rename(tmp_path / "aside")
        assert "does not take the users away" in str(_ask(broker.data, "reload")["reason"])
        (tmp_path / "aside").rename(users)
        command = [sys.executable, "-m", "whimbrel", "reload", "--data", str(broker.data)]
        guarded.rights.write_text("default = 7", encoding="utf-8")
        failed = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (failed.returncode, failed.stdout) == (1, "")
        assert failed.stderr.startswith("error: ")
        asyncio.run(_enter(guarded.client("eve", "eve")))  # she was removed from the file, which was not taken
        assert guarded.served() == before
        guarded.rights.write_text(_RIGHTS, encoding="utf-8")
        assert _ask(broker.data, "reload")["done"]
        with pytest.raises(ConnectRefusedError):
            asyncio.run(_enter(guarded.client("eve", "eve")))
    failures = [line for line in broker.lines if "reload failed: the settings stay as they were" in line]
    assert len(failures) == 5
    assert all("[error" in line for line in failures)


async def _enter(client: Client) -> None:
    async with client:
        pass


def test_rights_that_are_taken_away_count_at_once(tmp_path: Path) -> None:
    """For what is retained and for subscriptions that there are, on the same connection."""
    guarded = _Guarded(tmp_path)

    async def work() -> None:
        async with guarded.client("ann", "ann") as ann, guarded.client("bob", "bob") as bob:
            await ann.subscribe("secret/#", qos=1)
            await bob.publish("secret/code", b"1", qos=1, retain=True)
            assert (await anext(ann.messages())).payload == b"1"
            guarded.rights.write_text(_RIGHTS.replace('"ann"', '"bob"'), encoding="utf-8")
            assert (await asyncio.to_thread(_ask, broker.data, "reload"))["ok"]
            await bob.publish("secret/code", b"2", qos=1, retain=True)
            await bob.publish("open", b"3", qos=1)
            await ann.subscribe("open", qos=1)
            await bob.publish("open", b"4", qos=1)
            assert (await anext(ann.messages())).payload == b"4"
            await bob.subscribe("secret/#")
            assert (await anext(bob.messages())).payload == b"2"

    with guarded.broker as broker:
        asyncio.run(asyncio.wait_for(work(), 60))


def test_the_log_level_is_read_again_and_other_settings_wait_for_a_restart(tmp_path: Path) -> None:
    """An operator who changes more is told which settings did not change."""
    with BrokerProcess(tmp_path) as broker:
        config = tmp_path / "broker.toml"
        text = config.read_text(encoding="utf-8")
        config.write_text(text + '[observe]\nlog_level = "error"\n[limits]\nconnections = 7\n', encoding="utf-8")
        done = str(_ask(broker.data, "reload")["done"])
        assert "log level error" in done
        assert done.endswith("restart to change limits.connections")
        lines = len(broker.lines)
        _ask(broker.data, "reload")  # at level error nothing is said of it
        os.kill(broker.pid, signal.SIGUSR1)
        found = _ask(broker.data, "status")["status"]
        assert isinstance(found, dict)
        assert (found["log_level"], found["pid"]) == ("error", broker.pid)
    assert [line for line in broker.lines[lines:] if line.startswith("clients ")]
    assert not [line for line in broker.lines[lines + 1 :] if "reloaded" in line]


def test_the_status_says_what_goes_on(tmp_path: Path) -> None:
    """As text for people and as JSON for programs; without a broker it says which folder it looked into."""
    command = [sys.executable, "-m", "whimbrel", "status", "--data", str(tmp_path / "data")]
    with BrokerProcess(tmp_path) as broker:

        async def work() -> dict[str, object]:
            async with Client("127.0.0.1", broker.port, client_id="lamp", session_expiry_s=60) as lamp:
                await lamp.subscribe("a/#", qos=1)
                await lamp.publish("a/b", b"x", qos=1, retain=True)
                return dict(await asyncio.to_thread(_ask, broker.data, "status"))

        found = asyncio.run(asyncio.wait_for(work(), 60))["status"]
        assert isinstance(found, dict)
        assert found["clients"] == {"connected": 1, "known": 1, "slowed": 0}
        assert found["sessions"] == {"named": 0, "subscriptions": 1}
        assert found["log"]["last_seq"] >= 3
        assert found["lag"]["not_durable"] >= 0
        assert found["listening"] == broker.ports
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "clients      0 connected, 1 known" in shown
        assert json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)
        assert (broker.data / "control").stat().st_mode & 0o077 == 0
    gone = subprocess.run(command, capture_output=True, text=True, check=False)
    assert gone.returncode == 2
    assert gone.stderr.startswith("error: no broker answers in ")
