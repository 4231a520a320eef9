"""Connections of ``whimbrel session``: as the device itself, or under a name of the command's own."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from whimbrel.cli.options.connection import Connection, answer_of, run

if TYPE_CHECKING:  # other commands need not load asyncio and MQTT
    from whimbrel.client import Client, Join, Sessions

__all__ = ["AskingConnection", "DeviceConnection", "ask", "this_device"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConnection(Connection):
    """The connection of a device of a session."""

    device: Annotated[
        str | None, typer.Option("--device", metavar="ID", help="Which device we are; if not given, USER@HOST/cli.")
    ] = None

    def client_of_device(
        self, *, is_lasting: bool = False, join: Sequence[Join] = (), place: str | None = None
    ) -> Client:
        """Return a client that connects as the device and reports its *place*."""
        return self.client(self.device or this_device(), is_lasting=is_lasting, join=join, place=place)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskingConnection(Connection):
    """The connection of a command that only sends requests and disconnects no device."""

    device: Annotated[
        str | None, typer.Option("--device", metavar="ID", help="Who asks; if not given, USER@HOST/cli and a number.")
    ] = None

    def client_of_its_own(self) -> Client:
        """Return a client that only sends requests."""
        return self.client(self.device or f"{this_device()}/{os.getpid()}")

    def client_that_owns(self) -> Client:
        """Return a client that only sends requests, always under one name, so that it owns the policies it puts."""
        return self.client(self.device or this_device())


def this_device() -> str:
    """Return the device name of this user on this machine, which is the same for each command."""
    try:
        who = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a user id without a name
        who = str(os.getuid())
    return f"{who}@{socket.gethostname()}/cli"


def ask(client: Client, work: Callable[[Sessions], Awaitable[_T]]) -> _T:
    """Connect, run *work*, and return its result."""
    answers: list[_T] = []

    async def ask() -> None:
        async with client:
            answers.append(await answer_of(work(client.sessions)))

    run(ask())
    return answers[0]
