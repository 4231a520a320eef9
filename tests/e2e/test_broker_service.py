"""The broker as an operator meets it: users, TLS, metrics, health, ``$SYS``, and a stop that loses nothing."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.certificates import Authority
from tests.e2e.raw_client import Kind, P, RawClient, publish_packet

from whimbrel.log.layout import nodes
from whimbrel.log.reader import proven_seq, read
from whimbrel.model.notification import Notification

_WAIT_S = 20.0


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Start a broker with users and rights."""
    folder = tmp_path_factory.mktemp("guarded")
    users, rights = folder / "users", folder / "rights.toml"
    for name in ("ada", "grace"):
        command = [sys.executable, "-m", "whimbrel", "user", "add", name, "--file", str(users), "--password-file", "-"]
        subprocess.run(command, input=f"{name}'s secret", text=True, check=True, capture_output=True)
    rights.write_text(
        'default = "deny"\n[[rule]]\ntopics = ["home/{user}/#"]\nallow = ["publish", "subscribe"]\n', encoding="utf-8"
    )
    with BrokerProcess(folder, "--users", str(users), "--rights", str(rights), is_forked=False) as broker:
        yield broker
    assert "secret" not in "".join(broker.lines)


def paho_client(name: str, password: str | None = None) -> tuple[paho.Client, list[object]]:
    """Return a client of version 5 that has tried to connect, and the codes of the answer."""
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"{name}-device", protocol=paho.MQTTv5)
    answered, codes = threading.Event(), []

    def on_connect(_client: object, _data: object, _flags: object, code: object, _properties: object) -> None:
        codes.append(code)
        answered.set()

    client.on_connect = on_connect
    if password is not None:
        client.username_pw_set(name, password)
    client._test_answered = answered  # type: ignore[attr-defined]
    return client, codes


@contextmanager
def connected(client: paho.Client, port: int, host: str = "127.0.0.1") -> Iterator[None]:
    """Connect, wait for the answer, and go at the end."""
    client.connect(host, port)
    client.loop_start()
    try:
        assert client._test_answered.wait(_WAIT_S)  # type: ignore[attr-defined]
        yield
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.mark.parametrize(
    ("name", "password", "answer"),
    [
        ("ada", "ada's secret", "Success"),
        ("ada", "grace's secret", "Bad user name or password"),
        ("nobody", "ada's secret", "Bad user name or password"),
        ("ada", None, "Bad user name or password"),
    ],
)
def test_only_known_users_come_in(guarded: BrokerProcess, name: str, password: str | None, answer: str) -> None:
    """A wrong password and an unknown name are told alike."""
    client, codes = paho_client(name, password)
    with connected(client, guarded.port):
        assert [str(code) for code in codes] == [answer]


def test_rights_follow_the_verified_name(guarded: BrokerProcess) -> None:
    """A topic of one's own may be used, another's may not, whatever client id somebody chooses."""
    client, _ = paho_client("ada", "ada's secret")
    codes: list[int] = []
    answered = threading.Event()

    def on_subscribe(_client: object, _data: object, _id: object, found: list[ReasonCode], _properties: object) -> None:
        codes.extend(code.value for code in found)
        answered.set()

    client.on_subscribe = on_subscribe
    with connected(client, guarded.port):
        client.subscribe([("home/ada/#", 1), ("home/grace/#", 1), ("#", 1)])
        assert answered.wait(_WAIT_S)
    assert codes == [1, 0x80, 0x80]


def test_a_client_certificate_is_a_name(tmp_path: Path) -> None:
    """Over TLS, who the certificate says it is needs no password; who has none is still asked for one."""
    authority = Authority(tmp_path)
    certificate, key = authority.sign("broker", "localhost")
    theirs = authority.sign("ada", "ada")
    users = tmp_path / "users"
    command = [sys.executable, "-m", "whimbrel", "user", "add", "grace", "--file", str(users), "--password-file", "-"]
    subprocess.run(command, input="other", text=True, check=True, capture_output=True)
    options = ("--tls-port", "0", "--tls-certificate", str(certificate), "--tls-key", str(key))
    with BrokerProcess(
        tmp_path / "broker", *options, "--tls-client-ca", str(authority.root), "--users", str(users)
    ) as broker:
        answers = []
        for own in (theirs, None):
            client, codes = paho_client("device")
            context = ssl.create_default_context(cafile=str(authority.root))
            if own is not None:
                context.load_cert_chain(*own)
            client.tls_set_context(context)
            with connected(client, broker.ports["mqtts"], "localhost"):
                answers += [str(code) for code in codes]
    assert answers == ["Success", "Bad user name or password"]


def test_a_handshake_that_does_not_come_ends_with_the_time_of_connect(tmp_path: Path) -> None:
    """Connections that say nothing were kept for a minute, and remembered for ever."""
    certificate, key = Authority(tmp_path).sign("broker", "localhost")
    options = ("--tls-port", "0", "--http-port", "0", "--tls-certificate", str(certificate), "--tls-key", str(key))
    settings = {"limits": {"connect_timeout_s": 0.2}}
    with BrokerProcess(tmp_path / "broker", *options, settings=settings) as broker:
        silent = [socket.create_connection(("127.0.0.1", broker.ports["mqtts"]), timeout=30) for _ in range(3)]
        for each in silent:
            with each:
                assert each.recv(1) == b"", "the broker closes it"
        url = f"http://127.0.0.1:{broker.ports['http']}/metrics"
        while True:
            with urllib.request.urlopen(url) as answer:  # our own, on loopback
                if "whimbrel_failed_handshakes_total 3.0" in answer.read().decode():
                    break


def test_metrics_health_and_system_topics(tmp_path: Path) -> None:
    """What an operator looks at first says what the broker does."""
    settings = {"observe": {"sys_interval_s": 0.2, "log_format": "json"}}
    with BrokerProcess(tmp_path, "--http-port", "0", settings=settings) as broker, RawClient(broker.port) as client:
        client.connect("watcher")
        client.subscribe("$SYS/broker/clients/connected")
        while client.message().payload != b"1":
            pass  # what was said before it came
        base = f"http://127.0.0.1:{broker.ports['http']}"
        with urllib.request.urlopen(f"{base}/healthz") as answer:  # noqa: S310 # our own, on loopback
            assert answer.read() == b"ok\n"
        with urllib.request.urlopen(f"{base}/metrics") as answer:  # noqa: S310 # see above
            lines = answer.read().decode().splitlines()
        assert "whimbrel_clients_connected 1.0" in lines
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{base}/")  # noqa: S310 # see above
    assert all(json.loads(line)["event"] for line in broker.lines)


def test_a_stop_says_goodbye_and_keeps_what_is_held(tmp_path: Path) -> None:
    """SIGTERM is no crash: clients are told, the exit status is 0, and the next start goes on."""
    with BrokerProcess(tmp_path) as broker:
        with RawClient(broker.port) as sleeper:
            sleeper.connect("sleeper", properties=((P.SESSION_EXPIRY, 600),))
            sleeper.subscribe(("t", 1))
        with RawClient(broker.port) as client:
            client.connect("publisher")
            client.publish("t", b"kept", qos=1)
            assert broker.stop() == 0
            assert client.receive(Kind.DISCONNECT).code == 0x8B
        broker.start()
        with RawClient(broker.port) as sleeper:
            assert sleeper.connect("sleeper", clean=False, properties=((P.SESSION_EXPIRY, 600),)).session_present
            assert sleeper.message().payload == b"kept"


def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    """The message names the address, and nothing is left running."""
    with BrokerProcess(tmp_path / "first") as broker:
        command = [sys.executable, "-m", "whimbrel", "serve", "--port", str(broker.port)]
        ran = subprocess.run(
            [*command, "--data", str(tmp_path / "second")], capture_output=True, text=True, check=False
        )
    assert ran.returncode == 2
    assert f"cannot listen on 127.0.0.1:{broker.port} (mqtt): address already in use" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_one_data_directory_has_one_broker(tmp_path: Path) -> None:
    """A second broker on the same log is refused before it can do harm."""
    with BrokerProcess(tmp_path) as broker:
        command = [sys.executable, "-m", "whimbrel", "serve", "--port", "0", "--data", str(broker.data)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr


def test_a_request_behind_what_waits_for_the_disk_is_answered_without_another_packet(tmp_path: Path) -> None:
    """The question of its password comes up when the disk has answered, and nobody else need say anything."""
    with (
        BrokerProcess(tmp_path, settings={"observe": {"sys_interval_s": 0}}) as broker,
        RawClient(broker.port) as client,
    ):
        client.connect("c", clean=True, properties=((P.SESSION_EXPIRY, 60),))
        client.subscribe(("a", 1))
        owed = publish_packet("a", b"x", qos=1, packet_id=9)
        to = ((P.RESPONSE_TOPIC, "r"),)
        client.send(owed + publish_packet("$whimbrel/session/join", b'{"session":"nope"}', properties=to))
        while (packet := client.next_packet()).topic != "r":
            pass
        assert json.loads(packet.payload)["code"] == 0x87


def test_readers_of_the_log_see_what_was_published_last(tmp_path: Path) -> None:
    """Also what nobody waits for, though nothing comes after it: a pipeline must not lag behind a silent broker."""
    # The view follows the log now and then, and would show it too; here it does not come to that.
    settings = {"observe": {"sys_interval_s": 0}, "log": {"view_interval_s": 3600}}
    with BrokerProcess(tmp_path, settings=settings) as broker, RawClient(broker.port) as client:
        client.connect("c")
        for _ in range(3):
            client.send(publish_packet("t", b"x"))
        folder = next(tmp_path.rglob("whimbrel-log.json")).parent
        (node,) = nodes(folder)
        until = time.monotonic() + _WAIT_S
        seen = 0
        while seen < 3 and time.monotonic() < until:
            time.sleep(0.05)
            facts = read(folder, node, last=proven_seq(folder, node))
            seen = sum(isinstance(fact, Notification) for fact in facts)
        assert seen == 3
