"""What a new user of the client meets first: payloads, TLS files, and a broker that is not up yet."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from tests.e2e.certificates import Authority

from whimbrel.broker.shell.net.handshakes import TlsContext
from whimbrel.client import CannotConnectError, CertificateError, Client, ConnectRefusedError, Message, Tls
from whimbrel.client.link import Link
from whimbrel.client.messages import payload_of
from whimbrel.errors import InvalidValueError, MalformedBodyError
from whimbrel.mqtt.decoding import decode
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import V5


@pytest.mark.parametrize(
    ("payload", "sent"),
    [
        (21.5, b"21.5"), (7, b"7"), (True, b"true"), (None, b"null"), ([1, "a"], b'[1,"a"]'), ("on", b"on"),
        (b"\x00", b"\x00"), (bytearray(b"ab"), b"ab"), ({"a": 1}, b'{"a":1}'),
    ],
)  # fmt: skip
def test_a_payload_is_what_json_has(payload: object, sent: bytes) -> None:
    """A thermometer publishes 21.5, and no object around it."""
    assert payload_of(payload) == sent  # type: ignore[arg-type] # a memoryview of anything is bytes


def test_what_json_does_not_have_is_refused() -> None:
    """NaN would be no JSON, and a set has no order."""
    for payload in (float("nan"), {1, 2}, [object()]):
        with pytest.raises(InvalidValueError, match="what JSON has"):
            payload_of(payload)  # type: ignore[arg-type] # that is the point


def test_a_message_is_read_as_json() -> None:
    """The other way round."""
    assert Message(topic="t", payload=b'{"a": [1, null]}').json() == {"a": [1, None]}
    with pytest.raises(MalformedBodyError, match="line 1, column 1"):
        Message(topic="t", payload=b"on").json()
    with pytest.raises(MalformedBodyError, match="nested too deeply"):
        Message(topic="t", payload=b"[" * 100_000).json()


def test_a_device_of_a_session_has_a_name() -> None:
    """A session would keep messages for a device that never comes back."""
    with pytest.raises(InvalidValueError, match="by name"):
        Client(join=["ward"])


# -- TLS -------------------------------------------------------------------------------------------------------------


def test_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    """An error of OpenSSL names no file."""
    authority = Authority(tmp_path)
    mine, _ = authority.sign("mine", "ann")
    _, other = authority.sign("other", "ben")
    with pytest.raises(CertificateError, match=r"other\.key does not belong to .*mine\.pem$"):
        Tls(certificate=mine, key=other).context()
    with pytest.raises(CertificateError, match=r"nowhere\.pem: No such file"):
        Tls(certificate=tmp_path / "nowhere.pem", key=other).context()
    with pytest.raises(CertificateError, match=r"other\.key has no certificate in PEM"):
        Tls(ca=other).context()
    with pytest.raises(CertificateError, match=r"a TLS key needs its certificate"):
        Tls(key=other).context()


def test_an_authority_of_our_own_is_the_only_one(tmp_path: Path) -> None:
    """Who names an authority does not trust those of the system as well."""
    context = Tls(ca=Authority(tmp_path).root).context()
    assert len(context.get_ca_certs()) == 1
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


# -- the first connection --------------------------------------------------------------------------------------------


class _Late(Client):
    """A client whose broker is up at the third attempt."""

    attempts = 0
    error: Exception = CannotConnectError("127.0.0.1", 1, "connection refused")

    async def _dial(self) -> Link:
        self.attempts += 1
        if self.attempts < 3:
            raise self.error
        raise ConnectRefusedError(0x86)


@pytest.mark.parametrize("error", [CannotConnectError("127.0.0.1", 1, "refused"), ConnectRefusedError(0x88)])
def test_the_first_connection_is_tried_again(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that was started in the line before needs a moment; one that says no for good is not asked again."""
    waits: list[float] = []

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)

    monkeypatch.setattr("whimbrel.client.client.asyncio.sleep", sleep)
    client = _Late(first_retry_s=5.0)
    client.error = error
    with pytest.raises(ConnectRefusedError, match="0x86"):
        asyncio.run(client.__aenter__())
    assert (client.attempts, len(waits)) == (3, 2)


def test_without_being_asked_it_is_tried_once() -> None:
    """A program decides itself how long to wait."""
    client = _Late()
    with pytest.raises(CannotConnectError):
        asyncio.run(client.__aenter__())
    assert client.attempts == 1


async def _reason(tls: Tls | None) -> str:
    """Return why a client cannot connect to a port that closes as soon as it has read something."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        with pytest.raises(CannotConnectError) as refused:
            async with Client("127.0.0.1", server.sockets[0].getsockname()[1], tls=tls):
                pass
    return str(refused.value)


def test_a_client_without_tls_at_a_port_with_it_is_told_so() -> None:
    """And the other way round: both are the first thing that a new operator mistypes."""
    assert "a port for TLS does that to a client without TLS (--tls, --tls-ca)" in asyncio.run(_reason(None))
    assert "closed during the TLS handshake; a port without TLS does that" in asyncio.run(_reason(Tls()))


def test_a_broker_does_not_wait_for_the_answer_of_a_client_without_tls(tmp_path: Path) -> None:
    """It has no alert to read; one that speaks TLS has, and is waited for."""
    certificate, key = Authority(tmp_path).sign("broker", "localhost")
    context = TlsContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    for first_bytes in (b"\x10\x0c\x00\x04MQTT\x04\x02", b"GET / HTTP/1.1\r\n"):
        incoming = ssl.MemoryBIO()
        incoming.write(first_bytes)
        with pytest.raises(ssl.SSLError) as failed:
            context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()
        assert not isinstance(failed.value, ssl.SSLWantReadError)


def test_tls_at_a_port_without_it_is_named_in_the_log() -> None:
    """Not as flags of a CONNECT, which nobody sent."""
    with pytest.raises(ProtocolError, match="this begins as TLS does, and here is no TLS"):
        decode(0x16, b"\x03\x01\x02", V5)
