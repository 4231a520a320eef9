"""Connections to a broker: options for address, user and TLS, and the client made from them.

Rule: a password is never an argument, where other processes and the shell's history could see it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from whimbrel.cli.options.passwords import password_from
from whimbrel.cli.options.values import read_seconds

if TYPE_CHECKING:  # other commands need not load asyncio and MQTT
    from whimbrel.client import Client, Join

__all__ = ["MAX_ANSWER_S", "ClientId", "Connection", "PasswordFile", "Port", "User", "answer_of", "run"]

MAX_ANSWER_S = 60.0
"""Longest time that a command waits for the answer to a request; a broker whose disk is full does not answer."""
_T = TypeVar("_T")

Port = Annotated[int, typer.Option("--port", min=1, max=65_535, help="Its port for MQTT.")]
ClientId = Annotated[
    str, typer.Option("--client-id", metavar="ID", help="Who we are; if not given, the broker makes up a name.")
]
User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="The user to connect as.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option("--password-file", metavar="FILE", help="The user's password is the one line of FILE; - is input."),
]


def _print_error(sentence: str) -> None:
    typer.echo(sentence, err=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Address of the broker, and the user and settings to connect with."""

    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where the broker is.")] = "127.0.0.1"
    port: Annotated[
        int | None,
        typer.Option("--port", min=1, max=65_535, help="Its port for MQTT; 1883 if not given, 8883 for TLS."),
    ] = None
    user: User = None
    password_file: PasswordFile = None
    mqtt: Annotated[str, typer.Option("--mqtt", metavar="5|3.1.1", help="The version of MQTT to speak.")] = "5"
    tls: Annotated[bool, typer.Option("--tls", help="Speak TLS; any of the next four options says so, too.")] = False
    tls_ca: Annotated[
        Path | None,
        typer.Option("--tls-ca", metavar="FILE", help="Who signs the broker's certificate (PEM); else the system's."),
    ] = None
    tls_certificate: Annotated[
        Path | None, typer.Option("--tls-certificate", metavar="FILE", help="Our own certificate, as PEM.")
    ] = None
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key, as PEM.")] = None
    tls_server_name: Annotated[
        str | None,
        typer.Option("--tls-server-name", metavar="NAME", help="The name in the broker's certificate; else --host."),
    ] = None
    retry: Annotated[
        float,
        typer.Option(
            "--retry", metavar="TIME", parser=read_seconds, help="For how long to try if the broker is not up yet."
        ),
    ] = 5.0

    @property
    def is_v5(self) -> bool:
        """Whether the version is MQTT 5."""
        return self.mqtt == "5"

    def check(self) -> None:
        """Refuse options that contradict each other."""
        if self.mqtt not in {"5", "3.1.1"}:
            raise typer.BadParameter(f"--mqtt: found {self.mqtt!r}, allowed is 5 or 3.1.1")
        if self.password_file is not None and self.user is None:
            raise typer.BadParameter("--password-file needs --user")

    @property
    def has_tls(self) -> bool:
        """Whether the connection uses TLS."""
        return self.tls or any((self.tls_ca, self.tls_certificate, self.tls_key, self.tls_server_name))

    def client(
        self,
        client_id: str,
        *,
        session_expiry_s: int = 0,
        is_lasting: bool = False,
        join: Sequence[Join] = (),
        keys: Sequence[str] = (),
        place: str | None = None,
        told: Callable[[str], None] = _print_error,
    ) -> Client:
        """Return a client with these options; if *is_lasting*, it reconnects after its connection is lost.

        With a *place* (a position) the client regularly reports it to the broker.
        """
        from whimbrel.client import Backoff, Client, Reporting, Tls  # see above

        self.check()
        secured = Tls(
            ca=self.tls_ca, certificate=self.tls_certificate, key=self.tls_key, server_name=self.tls_server_name
        )
        return Client(
            self.host,
            self.port or (8_883 if self.has_tls else 1_883),
            tls=secured if self.has_tls else None,
            first_retry_s=self.retry,
            client_id=client_id,
            version=5 if self.is_v5 else 4,
            username=self.user,
            password=None if self.password_file is None else password_from(self.password_file),
            session_expiry_s=session_expiry_s,
            reconnect=Backoff(most_s=10.0) if is_lasting else None,
            told=told,
            join=join,
            keys=keys,
            reports=None if place is None else Reporting(place=place, battery=lambda: None),
        )


async def answer_of(request: Awaitable[_T]) -> _T:
    """Return the broker's answer to *request*; exit 1 if none comes in time."""
    try:
        async with asyncio.timeout(MAX_ANSWER_S):
            return await request
    except TimeoutError:
        typer.echo(
            f"error: no answer within {MAX_ANSWER_S:g} s; the request may still be done later. "
            "A broker whose disk is full answers when there is room again: see its log",
            err=True,
        )
        raise typer.Exit(1) from None


def run(work: Coroutine[object, object, None], *, timeout_s: float | None = None) -> None:
    """Run *work*; exit 1 if the broker refuses or cannot be reached, or if *work* takes longer than *timeout_s*."""
    from whimbrel.client import ClientError  # see above

    async def work_within_limit() -> None:
        async with asyncio.timeout(timeout_s):
            await work

    try:
        asyncio.run(work_within_limit())
    except TimeoutError:
        typer.echo(f"error: not done after {timeout_s:g} s", err=True)
        raise typer.Exit(1) from None
    except ClientError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
