"""How the commands of ``whimbrel session`` connect: as the device they speak of, or under a name of their own."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from whimbrel.cli.options.connection import Connection, run

if TYPE_CHECKING:  # asyncio and the wire need not be loaded for other commands
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
        """Return a client that is the device, and reports its *place*."""
        return self.client(self.device or this_device(), is_lasting=is_lasting, join=join, place=place)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskingConnection(Connection):
    """The connection of a command that only asks, and throws no device out."""

    device: Annotated[
        str | None, typer.Option("--device", metavar="ID", help="Who asks; if not given, USER@HOST/cli and a number.")
    ] = None

    def client_of_its_own(self) -> Client:
        """Return a client that only asks."""
        return self.client(self.device or f"{this_device()}/{os.getpid()}")

    def client_that_owns(self) -> Client:
        """Return a client that only asks and has one name every time: what it puts is its own the next time too."""
        return self.client(self.device or this_device())


def this_device() -> str:
    """Return what this user of this machine is called as a device, whenever the command runs."""
    try:
        who = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number that has no name
        who = str(os.getuid())
    return f"{who}@{socket.gethostname()}/cli"


def ask(client: Client, work: Callable[[Sessions], Awaitable[_T]]) -> _T:
    """Ask, and return the answer."""
    answers: list[_T] = []

    async def ask() -> None:
        async with client:
            answers.append(await work(client.sessions))

    run(ask())
    return answers[0]
