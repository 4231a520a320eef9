"""``whimbrel tickertape``: a scrolling line of messages, to which the user can write.

After Elvin's Tickertape (Parsowith et al., 1998). The parts are in ``whimbrel.cli.ticker``.
Rule: a password is never an argument, where other processes and the shell's history could see it.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.options.connection import Connection, run
from whimbrel.cli.options.groups import with_option_groups
from whimbrel.cli.options.passwords import ENVIRONMENT, password_from
from whimbrel.cli.options.values import read_whole_seconds
from whimbrel.cli.ticker.message import FIRST_GROUP, MAX_MINUTES, check_group
from whimbrel.cli.ticker.text import clean
from whimbrel.language.filters import parse

if TYPE_CHECKING:  # other commands need not load asyncio and MQTT
    from whimbrel.cli.ticker.channel import Channel, Wanted
    from whimbrel.cli.ticker.terminal import Show

__all__ = ["tickertape"]

_NO_NAME = "unnamed"
_COLUMNS = 80
"""Columns of a window until the terminal's size is known."""
_NOT_IN_NAMES = re.compile(r"[/+#]|^\$")


@with_option_groups()
def tickertape(
    groups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GROUP", help="Groups to subscribe to; those of last time if not given.", show_default=False
        ),
    ] = None,
    *,
    send: Annotated[
        tuple[str, str] | None, typer.Option("--send", metavar="GROUP TEXT", help="Send one message and exit.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print what was held and exit.")] = False,
    leave: Annotated[
        list[str] | None, typer.Option("--leave", metavar="GROUP", help="Give up a group; repeatable.")
    ] = None,
    filter_text: Annotated[
        str | None,
        typer.Option("--filter", metavar="EXPR", help="Only messages of the GROUPs whose content EXPR selects."),
    ] = None,
    ttl: Annotated[
        int,
        typer.Option(
            "--ttl",
            metavar="TIME",
            parser=read_whole_seconds,
            help="How long messages of the GROUPs are kept while we are away: 5m.",
        ),
    ] = 300,
    most: Annotated[
        int, typer.Option("--max", metavar="N", min=0, help="How many messages are kept for each GROUP.")
    ] = 20,
    minutes: Annotated[
        int, typer.Option("--minutes", metavar="N", min=1, max=MAX_MINUTES, help="How long what we send is shown.")
    ] = 5,
    speaker: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Who speaks; the user if not given.")
    ] = None,
    session: Annotated[
        str | None, typer.Option("--session", metavar="NAME", help="Our session; tickertape-<who speaks> if not given.")
    ] = None,
    session_password_file: Annotated[
        Path | None,
        typer.Option(
            "--session-password-file",
            metavar="FILE",
            help=f"Its password is the one line of FILE; or {ENVIRONMENT}.",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave what we read for our other devices that are away.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="In a pipe: stop after N messages.")
    ] = None,
    connection: Connection,
    client_id: Annotated[
        str, typer.Option("--client-id", metavar="ID", help="This device; made of user and host if not given.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="In a pipe: print JSON objects, one per line.")] = False,
) -> None:
    """Follow groups on one scrolling line, and write to them.

    Messages sent while this command does not run are kept in a named session and come when it runs again; the session
    remembers the groups. A message is TICKERTAPE (its group), USER, TICKERTEXT, TIMEOUT (minutes) and Message-Id, which
    --filter can use.

    In a terminal: Enter or i opens a line to type, Tab changes the group, h shows earlier messages (up and down), q
    quits. In a pipe: prints `group: user: text` for each message, and sends each line `group: text` of its input.

    Example: whimbrel tickertape chat news --filter "USER != 'bot'"
    """
    for group in (*(groups or ()), *(leave or ()), *(send or ())[:1]):
        check_group(group)
    if filter_text is not None:
        parse(filter_text)  # show an error in the filter with its position, before anything is sent
        if not groups:
            raise typer.BadParameter("--filter needs a GROUP, which it is for")
    if send is not None and (once or groups or leave):
        raise typer.BadParameter("--send excludes GROUPs, --leave and --once")
    if send is not None and not clean(send[1]):
        raise typer.BadParameter("--send: found no text")
    connection.check()
    from whimbrel.cli.ticker.channel import Channel, Wanted  # see above

    who = clean(speaker or connection.user or _login()) or _NO_NAME

    def channel(device: str, *, told: Callable[[str], None] = _tell, is_lasting: bool = False) -> Channel:
        client = connection.client(device, is_lasting=is_lasting, told=told)
        return Channel(client, who, minutes=minutes, is_v5=connection.is_v5)

    if send is not None:
        run(_send(channel(client_id), send[0], clean(send[1])))
        return
    wanted = Wanted(
        session=session or "tickertape-" + _NOT_IN_NAMES.sub("-", who),
        password=_session_password(session_password_file),
        receipt="keep" if keep else "take",
        groups=groups or (),
        left=leave or (),
        filter_text=filter_text,
        ttl_s=ttl,
        max_held=most,
    )
    device = client_id or f"{who}@{socket.gethostname()}/tickertape"
    if once:
        # A device of its own, so that a running tape is not disconnected.
        run(_print_held(channel(client_id or f"{device}-once"), wanted, as_json=as_json))
    elif sys.stdin.isatty() and sys.stdout.isatty() and not as_json and count is None:
        from whimbrel.cli.ticker.board import Board  # see above
        from whimbrel.cli.ticker.tape import Tape
        from whimbrel.cli.ticker.terminal import Show

        show = Show(Board(Tape(_COLUMNS), [FIRST_GROUP]))
        run(_show(channel(device, told=show.tell, is_lasting=True), wanted, show))
    else:
        run(_talk(channel(device, is_lasting=True), wanted, count, as_json=as_json))


async def _send(channel: Channel, group: str, text: str) -> None:
    async with channel:
        await channel.send(group, text)


async def _print_held(channel: Channel, wanted: Wanted, *, as_json: bool) -> None:
    from whimbrel.cli.ticker.pipe import line_of  # see above

    async with channel:
        await channel.open(wanted)
        async for message in channel.read_held():
            typer.echo(line_of(message, as_json=as_json))


async def _talk(channel: Channel, wanted: Wanted, count: int | None, *, as_json: bool) -> None:
    from whimbrel.cli.ticker.pipe import talk  # see above

    async with channel:
        _tell(f"groups: {', '.join(await channel.open(wanted))}")
        await talk(channel, count=count, as_json=as_json)


async def _show(channel: Channel, wanted: Wanted, show: Show) -> None:
    async with channel:
        show.board.write_to(await channel.open(wanted) or [FIRST_GROUP])
        status = await show.run(channel)
    raise typer.Exit(status)  # outside, so that shown messages are acknowledged


def _tell(sentence: str) -> None:
    typer.echo(clean(sentence), err=True)


def _session_password(file: Path | None) -> str | None:
    return os.environ.get(ENVIRONMENT) if file is None else password_from(file)


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return _NO_NAME
