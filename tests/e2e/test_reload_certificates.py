"""A reload asks again, for every connection, what its handshake asked of a client's certificate."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.certificates import Authority

from whimbrel.broker.shell.operate.asking import ask_broker
from whimbrel.client import Client, DismissedError, Tls


class _Secured:
    """A broker that asks for certificates of *root* or of an authority below it, and its clients."""

    def __init__(self, folder: Path) -> None:
        self.root, self.folder = Authority(folder), folder
        self.below = Authority(folder, "below", self.root)
        served, key = self.root.sign("served", "localhost")
        self.ca, self.revoked = folder / "ca.pem", folder / "revoked.pem"
        self.ca.write_bytes(self.root.root.read_bytes())
        self.signed = {name: self.root.sign(name, name) for name in ("ann", "eve", "tom")}
        self.signed["bob"] = self.below.sign("bob", "bob")
        chain = self.signed["bob"][0].read_bytes() + self.below.root.read_bytes()
        self.signed["bob"][0].write_bytes(chain)
        self.revoke()
        tls = {"certificate": str(served), "key": str(key), "client_ca": str(self.ca), "revoked": str(self.revoked)}
        listen = {"tls_port": 0, "wss_port": 0}
        self.broker = BrokerProcess(
            folder / "broker", settings={"tls": tls, "listen": listen, "limits": {"connect_timeout_s": 120}}
        )

    def revoke(self, *names: str, days: int = 1) -> None:
        """Revoke the certificates of the root's clients called so, and none of the authority below."""
        lists = (self.root.revoke("root", *(self.signed[name][0] for name in names), days=days), self.below.revoke("b"))
        self.revoked.write_bytes(b"".join(each.read_bytes() for each in lists))

    def client(self, name: str | None) -> Client:
        """Return a client with the certificate of *name* that does not come back when it is sent away."""
        certificate, key = (None, None) if name is None else self.signed[name]
        tls = Tls(ca=self.root.root, certificate=certificate, key=key, server_name="localhost")
        port = self.broker.ports["mqtts"]
        return Client("127.0.0.1", port, client_id=name or "nobody", reconnect=None, tls=tls)

    def shaken(self, name: str, kind: str) -> ssl.SSLSocket:
        """Return a connection whose handshake is done, and that has said nothing else."""
        context = ssl.create_default_context(cafile=self.root.root)
        context.load_cert_chain(*self.signed[name])
        context.maximum_version = ssl.TLSVersion.TLSv1_2  # whose handshake the broker has done when the client has
        plain = socket.create_connection(("127.0.0.1", self.broker.ports[kind]), 30)
        return context.wrap_socket(plain, server_hostname="localhost")

    def reload(self) -> str:
        """Reload, and return what was done."""
        return str(ask_broker(self.broker.data, "reload")["done"])


async def _is_here(client: Client) -> bool:
    await client.publish("here", b"x", qos=1)
    return True


def test_a_reload_sends_clients_away_whose_certificate_is_not_good_any_more(tmp_path: Path) -> None:
    """As it was: a client whose certificate was revoked stayed connected."""
    secured = _Secured(tmp_path)

    async def work() -> None:
        async with (
            secured.client("ann") as ann,
            secured.client("bob") as bob,
            secured.client("eve") as eve,
            secured.client(None) as nobody,
        ):
            assert "closed" not in await asyncio.to_thread(secured.reload)
            secured.revoke("eve", "tom")
            assert "1 connection is closed" in await asyncio.to_thread(secured.reload)
            with pytest.raises(DismissedError, match=r"revoked.*0x87"):
                await anext(eve.messages())
            assert [await _is_here(each) for each in (ann, bob, nobody)] == [True] * 3
            secured.revoke(days=-1)  # the root's list is out of date; that of the authority below is not
            await asyncio.to_thread(secured.reload)
            with pytest.raises(DismissedError, match=r"revocation list.*0x87"):
                await anext(ann.messages())
            assert [await _is_here(each) for each in (bob, nobody)] == [True] * 2
            secured.revoke()
            secured.ca.write_bytes(Authority(tmp_path / "new", "new").root.read_bytes())
            await asyncio.to_thread(secured.reload)
            with pytest.raises(DismissedError, match=r"authority.*0x87"):
                await anext(bob.messages())
            assert await _is_here(nobody)

    (tmp_path / "new").mkdir()
    with secured.broker:
        asyncio.run(asyncio.wait_for(work(), 60))


def test_a_connection_that_has_not_connected_yet_is_asked_again(tmp_path: Path) -> None:
    """Its handshake was before the reload; CONNECT, or the WebSocket that carries it, comes after."""
    secured = _Secured(tmp_path)
    upgrade = (
        b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    with (
        secured.broker,
        secured.shaken("tom", "mqtts") as plain,
        secured.shaken("tom", "wss") as web,
        secured.shaken("ann", "mqtts") as ann,
    ):
        secured.revoke("tom")
        secured.reload()
        assert plain.recv(100) == b""
        web.sendall(upgrade)
        assert web.recv(100) == b""
        ann.sendall(b"\x10\x0f\0\4MQTT\4\2\0\0\0\3ann")
        assert ann.recv(4) == b"\x20\x02\0\0"
