"""Listeners of a real broker: Unix sockets and their files, TLS with revoked certificates, and alerts."""

from __future__ import annotations

import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.certificates import Authority
from tests.e2e.raw_client import Kind, packet

from whimbrel.broker.shell.net.unix_sockets import UnixSocket

WELCOME = b"\x20\x02\x00\x00"
_TIMEOUT_S = 30.0


def _connect(link: socket.socket, client_id: str) -> bytes:
    """Say CONNECT of 3.1.1, and return the four bytes of its answer."""
    name = client_id.encode()
    link.sendall(packet(Kind.CONNECT, b"\0\4MQTT\4\2\0\0" + len(name).to_bytes(2) + name))
    return _read(link, 4)


def _read(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := link.recv(count - len(data))):
        data += piece
    return data


def _dial(path: Path) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(_TIMEOUT_S)
    link.connect(str(path))
    return link


def _secure(authority: Authority, path: Path, files: tuple[Path, Path] | None = None) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(authority.root))
    if files is not None:
        context.load_cert_chain(*files)
    return context.wrap_socket(_dial(path), server_hostname="localhost")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Return an authority whose files stand beside the sockets."""
    return Authority(tmp_path)


@pytest.fixture
def broker(tmp_path: Path, authority: Authority) -> Iterator[BrokerProcess]:
    """Start a broker with a plain socket, a mounted one, and one that asks for certificates that are not revoked."""
    certificate, key = authority.sign("broker", "localhost")
    revoked = authority.revoke("revoked", authority.sign("thief", "thief")[0])
    authority.sign("ann", "ann")
    (tmp_path / "listeners.toml").write_text(f"""
[[listener]]
name = "plain"
socket = "{tmp_path}/plain"
socket_mode = "0600"

[[listener]]
name = "home"
socket = "{tmp_path}/home"
mount = "home/7/"

[[listener]]
name = "secured"
socket = "{tmp_path}/secured"
tls_certificate = "{certificate}"
tls_key = "{key}"
tls_client_ca = "{authority.root}"
tls_revoked = "{revoked}"
tls_require_client_certificate = true
""")
    with BrokerProcess(tmp_path / "broker", "--config", str(tmp_path / "listeners.toml")) as broker:
        yield broker


def test_listeners_on_unix_sockets(tmp_path: Path, broker: BrokerProcess, authority: Authority) -> None:
    """Their files have the mode that was asked for, a killed broker's are taken over, and none stays behind."""
    plain, home = tmp_path / "plain", tmp_path / "home"
    assert stat.S_IMODE(plain.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o660
    broker.kill()
    assert plain.exists()
    broker.start()
    with _dial(plain) as outside, _dial(home) as inside:
        assert _connect(outside, "outside") == _connect(inside, "inside") == WELCOME
        outside.sendall(packet(Kind.SUBSCRIBE, b"\0\1\0\1#\0", 2))
        assert _read(outside, 5) == b"\x90\x03\x00\x01\x00"
        inside.sendall(packet(Kind.PUBLISH, b"\0\4lampon"))
        assert _read(outside, 17) == packet(Kind.PUBLISH, b"\0\x0bhome/7/lampon")
    _check_certificates(authority, tmp_path)
    with pytest.raises(OSError, match="another process listens on it"):
        UnixSocket(str(plain), 0o600)
    broker.stop()
    assert not plain.exists()
    assert not home.exists()


def _check_certificates(authority: Authority, folder: Path) -> None:
    """Check that a client learns from an alert why it is not let in; without one it would guess."""
    files = {name: (folder / f"{name}.pem", folder / f"{name}.key") for name in ("ann", "thief")}
    with _secure(authority, folder / "secured", files["ann"]) as link:
        assert _connect(link, "ann") == WELCOME
    for who, alert in ((None, "CERTIFICATE_REQUIRED"), (files["thief"], "CERTIFICATE_REVOKED")):
        with pytest.raises(ssl.SSLError, match=alert), _secure(authority, folder / "secured", who) as link:
            _connect(link, "stranger")


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    """A path that was mistyped must not cost a file."""
    path = tmp_path / "notes"
    path.write_text("dear diary")
    with pytest.raises(FileExistsError, match="a file of another kind"):
        UnixSocket(str(path), 0o600)
    assert path.read_text() == "dear diary"


def test_only_our_own_socket_is_removed(tmp_path: Path) -> None:
    """Another broker may have replaced it meanwhile."""
    path = tmp_path / "socket"
    ours = UnixSocket(str(path), 0o640)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.rename(tmp_path / "elsewhere")
    path.touch()
    ours.remove()
    assert path.exists()
    ours.socket.close()


_SUBSCRIBE = packet(Kind.SUBSCRIBE, b"\0\1\0\x08home/7/#\1", 2)
_HELD = packet(Kind.PUBLISH, b"\0\x0bhome/7/lamp\0\5on", 2)


def _resume(link: socket.socket, client_id: str) -> bytes:
    """Say CONNECT of 3.1.1 for a session that stays, and return the four bytes of its answer."""
    name = client_id.encode()
    link.sendall(packet(Kind.CONNECT, b"\0\4MQTT\4\0\0\0" + len(name).to_bytes(2) + name))
    return _read(link, 4)


def test_a_stored_session_belongs_to_its_mount_point_from_the_first_start_on(tmp_path: Path) -> None:
    """With what is held for it; and a client outside gets nothing of it, whatever its identifier is."""
    sockets = {name: tmp_path / name for name in ("outside", "inside")}
    lines = [f'[[listener]]\nname = "{name}"\nsocket = "{path}"\n' for name, path in sockets.items()]
    (tmp_path / "before.toml").write_text(lines[0], encoding="utf-8")
    (tmp_path / "after.toml").write_text("".join(lines) + 'mount = "home/7/"\n', encoding="utf-8")
    with BrokerProcess(tmp_path / "broker", "--config", str(tmp_path / "before.toml")) as broker:
        with _dial(sockets["outside"]) as lamp:
            _resume(lamp, "lamp")
            lamp.sendall(_SUBSCRIBE)
            _read(lamp, 5)
        with _dial(sockets["outside"]) as other:
            _connect(other, "other")
            other.sendall(_HELD)
            assert _read(other, 4) == b"\x40\2\0\5"
        broker.stop()
        (broker.data / "mounted-node-1").unlink()  # as an earlier version left it
        broker.start("--config", str(tmp_path / "after.toml"))
        with _dial(sockets["outside"]) as stranger:
            assert _resume(stranger, "lamp") == b"\x20\2\0\2"
        with _dial(sockets["inside"]) as lamp:
            assert _resume(lamp, "lamp") == b"\x20\2\1\0"
            held = _read(lamp, 12)
            assert (held[4:8], held[10:]) == (b"lamp", b"on")
            lamp.sendall(b"\x40\2" + held[8:10] + b"\xc0\0")
            assert _read(lamp, 2) == b"\xd0\0"
        with _dial(sockets["inside"]) as lamp, _dial(sockets["outside"]) as stranger:
            assert _resume(lamp, "lamp") == b"\x20\2\1\0"
            assert _resume(stranger, "lamp") == b"\x20\2\0\0"
