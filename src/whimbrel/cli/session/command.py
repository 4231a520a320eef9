"""``whimbrel session``: named sessions, which several devices share.

Rule: a password is never an argument, where other processes and the shell's history could see it.
Rule: two connections cannot be one device at the same time. So only ``join``, ``leave`` and ``list`` connect as the
device itself; other commands use a name of their own, and do not disconnect a running ``join``.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.options.connection import run
from whimbrel.cli.options.groups import with_option_groups
from whimbrel.cli.options.passwords import (
    Access,
    Insecure,
    KeyFile,
    Keys,
    SessionPasswordFile,
    keys_from,
    read_access_options,
    session_password,
)
from whimbrel.cli.options.places import Near, OwnPlace, Stale
from whimbrel.cli.options.values import read_seconds, read_whole_seconds
from whimbrel.cli.session.connection import AskingConnection, DeviceConnection, ask
from whimbrel.cli.session.printing import counts_text, print_changes, print_done, tree_of, words_of
from whimbrel.cli.subscribe import print_all
from whimbrel.language.filters import parse

if TYPE_CHECKING:  # other commands need not load asyncio and MQTT
    from whimbrel.client import Sessions, SessionSubscription

__all__ = ["app"]

app = typer.Typer(
    help=(
        "Keep named sessions of a broker: create, join, leave, list, show, passwd, subscribe, unsubscribe, delete; "
        "and release the session of a client."
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _checked_name(name: str) -> str:
    from whimbrel.client.joining import check_session  # see above

    check_session(name)
    return name


def _checked_filter(topic_filter: str) -> str:
    from whimbrel.client.interest import Interest  # see above

    Interest(topic_filter=topic_filter)
    return topic_filter


Name = Annotated[str, typer.Argument(metavar="SESSION", help="The session's name.", callback=_checked_name)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
TopicFilter = Annotated[
    str,
    typer.Argument(metavar="TOPIC_FILTER", help="What to subscribe to, e.g. 'ward/+/bed/#'.", callback=_checked_filter),
]
SubscriptionName = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Tells subscriptions to one topic filter apart.")
]
Levels = Annotated[
    int | None,
    typer.Option(
        "--levels", min=1, max=3, help="Ask for the passwords of: 1 owner; 2 user, admin; 3 user, admin, owner."
    ),
]
PasswordsFile = Annotated[
    Path | None,
    typer.Option("--passwords-file", metavar="FILE", help='They stand in FILE, TOML or JSON, as in: owner = "…".'),
]
Acl = Annotated[
    Path | None,
    typer.Option("--acl", metavar="FILE", help="FILE, TOML or JSON, lists owner, and users and groups with rights."),
]
Open = Annotated[bool, typer.Option("--open", help="Open the session to every client.")]


# -- sessions --------------------------------------------------------------------------------------------------------


@app.command()
@with_option_groups()
def create(
    name: Name,
    *,
    levels: Levels = None,
    passwords_file: PasswordsFile = None,
    acl: Acl = None,
    is_open: Open = False,
    connection: AskingConnection,
    as_json: Json = False,
) -> None:
    """Create a session, without joining it.

    A session has one password (of the owner, who may do everything), two (of a user, who may join, and of an admin), or
    all three. With none of the options the session belongs to --user; if the broker knows no users, it is open to every
    client. A session that exists, and that the highest of these passwords opens, is left unchanged. Exits 1 if the
    broker cannot be reached or refuses.

    Example: whimbrel session create ward --levels 2
    """
    access = read_access_options(levels, passwords_file, acl, is_open=is_open) or Access()

    async def work(sessions: Sessions) -> bool:
        is_new = await sessions.create(
            name,
            user=access.user,
            admin=access.admin,
            owner=access.owner,
            acl=access.acl,
            exist_ok=access.acl is None and not access.is_open,
        )
        if access.is_open:
            await sessions.set_access(name, is_open=True)
        return is_new

    is_new = ask(connection.client_of_its_own(), work)
    print_done(name, "created" if is_new else "exists already", as_json=as_json)


@app.command()
@with_option_groups()
def join(
    name: Name,
    *,
    is_keep: Annotated[
        bool,
        typer.Option("--keep/--take", help="Keep what we print for others who are away, or take it from them."),
    ] = False,
    count: Annotated[int | None, typer.Option("--count", metavar="N", min=1, help="Stop after N messages.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="TIME", parser=read_seconds, help="Stop after TIME, with exit code 1."),
    ] = None,
    place: OwnPlace = None,
    session_password_file: SessionPasswordFile = None,
    connection: DeviceConnection,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON objects, one per line.")] = False,
) -> None:
    """Join a session and print its messages, one per line, until stopped: first the held ones, then new ones.

    Changes that others make to the session's subscriptions are printed on standard error. A lost connection is made
    again. The device stays a member when the command ends: until `leave`, the session keeps messages for it. Exits 0
    after --count messages; 1 when --timeout is over before, if the device is put out of the session, or if the broker
    cannot be reached or refuses.

    Example: whimbrel session join ward --keep --count 10
    """
    from whimbrel.client import Join  # see above

    joined = Join(name, session_password(name, session_password_file), "keep" if is_keep else "take")
    client = connection.client_of_device(is_lasting=True, join=[joined], place=place)

    async def listen() -> None:
        async with client, client.sessions.changes() as changes:
            telling = asyncio.create_task(print_changes(changes, name, as_json=as_json))
            printing = asyncio.create_task(print_all(client, count, as_json=as_json))
            try:
                done, _ = await asyncio.wait({telling, printing}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                telling.cancel()
                printing.cancel()
                await asyncio.gather(telling, printing, return_exceptions=True)
            for task in done:
                task.result()
            if printing not in done:
                raise typer.Exit(1)

    run(listen(), timeout_s=timeout)


@app.command()
@with_option_groups()
def leave(
    name: Name,
    *,
    session_password_file: SessionPasswordFile = None,
    connection: DeviceConnection,
    as_json: Json = False,
) -> None:
    """Leave a session, so that it no longer keeps messages for this device.

    A running `join` of the same device ends. Exits 1 if the broker cannot be reached or refuses.

    Example: whimbrel session leave ward
    """
    from whimbrel.client import Join  # see above

    joined = Join(name, session_password(name, session_password_file), "keep")
    client = connection.client_of_device(join=[joined])
    ask(client, lambda sessions: sessions.leave(name))
    print_done(name, "left", as_json=as_json)


@app.command("list")
@with_option_groups()
def list_(
    *,
    connection: DeviceConnection,
    as_json: Json = False,
) -> None:
    """Print the sessions that this device is a member of, and those that --user owns, one per line.

    A running `join` of the same device ends. Exits 1 if the broker cannot be reached or refuses.

    Example: whimbrel session list
    """
    found = ask(connection.client_of_device(), lambda sessions: sessions.list())
    if as_json:
        lines = [
            {"session": each.session, "devices": each.devices, "subscriptions": each.subscriptions, "held": each.held}
            for each in found
        ]
        typer.echo(json.dumps(lines, ensure_ascii=False))
        return
    for each in found:
        typer.echo(f"{each.session}  {counts_text(each.devices, each.subscriptions, each.held)}")
    if not found:
        typer.echo("no sessions of this device; `whimbrel session show NAME` prints any one")


@app.command()
@with_option_groups()
def show(
    name: Name,
    *,
    session_password_file: SessionPasswordFile = None,
    connection: AskingConnection,
    as_json: Json = False,
) -> None:
    """Print the devices and subscriptions of a session, and the number of messages that it keeps.

    Exits 1 if the broker cannot be reached or refuses.

    Example: whimbrel session show ward
    """
    password = session_password(name, session_password_file)
    found = ask(connection.client_of_its_own(), lambda sessions: sessions.show(name, password=password))
    if as_json:
        devices = [
            {"device": each.device, "present": each.is_present, "receipt": each.receipt} for each in found.devices
        ]
        subscriptions = [tree_of(each) for each in found.subscriptions]
        tree = {"session": name, "devices": devices, "subscriptions": subscriptions, "held": found.held}
        typer.echo(json.dumps(tree, ensure_ascii=False))
        return
    typer.echo(f"{name}  {counts_text(len(found.devices), len(found.subscriptions), found.held)}")
    for member in found.devices:
        typer.echo(f"  device {member.device}  {'present' if member.is_present else 'away'}, {member.receipt}")
    for subscription in found.subscriptions:
        typer.echo(f"  subscription {words_of(subscription)}")


@app.command()
@with_option_groups()
def passwd(
    name: Name,
    *,
    levels: Levels = None,
    passwords_file: PasswordsFile = None,
    acl: Acl = None,
    is_open: Open = False,
    session_password_file: SessionPasswordFile = None,
    connection: AskingConnection,
    as_json: Json = False,
) -> None:
    """Give a session other passwords, or a list of users and groups, or open it to every client.

    The session's password must be valid now and give the right to do this. All other connected devices are put out, and
    must join again with the new access; they miss nothing that is still kept. Exits 1 if the broker cannot be reached
    or refuses.

    Example: whimbrel session passwd ward --levels 3
    """
    if levels is None and passwords_file is None and acl is None and not is_open:
        raise typer.BadParameter("give --levels, --passwords-file, --acl or --open")
    password = session_password(name, session_password_file)
    access = read_access_options(levels, passwords_file, acl, is_open=is_open) or Access()

    async def work(sessions: Sessions) -> None:
        await sessions.set_access(
            name, password=password, user=access.user, admin=access.admin, owner=access.owner, acl=access.acl,
            is_open=access.is_open,
        )  # fmt: skip

    ask(connection.client_of_its_own(), work)
    print_done(name, "access changed", as_json=as_json)


@app.command()
@with_option_groups()
def delete(
    name: Name,
    *,
    session_password_file: SessionPasswordFile = None,
    connection: AskingConnection,
    as_json: Json = False,
) -> None:
    """Delete a session with its subscriptions and its messages.

    Exits 1 if the broker cannot be reached or refuses.

    Example: whimbrel session delete ward
    """
    password = session_password(name, session_password_file)
    ask(connection.client_of_its_own(), lambda sessions: sessions.delete(name, password=password))
    print_done(name, "deleted", as_json=as_json)


@app.command()
@with_option_groups()
def release(
    client_id: Annotated[str, typer.Argument(metavar="CLIENT_ID", help="The client identifier.")],
    *,
    connection: AskingConnection,
    as_json: Json = False,
) -> None:
    """Take the session of CLIENT_ID from the user who owns it, for operators.

    A client that is connected with it is disconnected. The session, with all messages that it keeps, goes to the user
    who next connects with CLIENT_ID, if that user's rights cover all its subscriptions; else it is ended. Needs the
    right "operate" on the topic $whimbrel/session/release in the rights file. Exits 1 if the broker cannot be reached
    or refuses.

    Example: whimbrel session release ward-3-panel --user operator
    """
    owner = ask(connection.client_of_its_own(), lambda sessions: sessions.release(client_id))
    if as_json:
        typer.echo(json.dumps({"client": client_id, "owner": owner}, ensure_ascii=False))
    else:
        typer.echo(f"{client_id}: released" + ("" if owner is None else f", it was {owner}'s"))


# -- subscriptions ---------------------------------------------------------------------------------------------------


@app.command()
@with_option_groups()
def subscribe(
    name: Name,
    topic_filter: TopicFilter,
    *,
    filter_text: Annotated[
        str | None, typer.Option("--filter", metavar="EXPR", help="Only messages whose content EXPR selects.")
    ] = None,
    qos: Annotated[int, typer.Option("--qos", min=0, max=2, help="The highest quality of service wanted.")] = 1,
    ttl: Annotated[
        int | None,
        typer.Option(
            "--ttl", metavar="TIME", parser=read_whole_seconds, help="How long messages are kept for who is away: 1h."
        ),
    ] = None,
    most: Annotated[
        int | None, typer.Option("--max", metavar="N", min=0, help="How many messages are kept for who is away.")
    ] = None,
    subscription_name: SubscriptionName = "",
    near: Near = None,
    stale: Stale = None,
    keys: Keys = None,
    key_file: KeyFile = None,
    insecure: Insecure = None,
    session_password_file: SessionPasswordFile = None,
    connection: AskingConnection,
    as_json: Json = False,
) -> None:
    """Add a subscription to a session, for all its devices; or change its subscription with this filter and name.

    Exits 1 if the broker cannot be reached or refuses.

    Example: whimbrel session subscribe ward 'ward/+/bed/#' --filter 'temperature > 38.5'
    """
    if filter_text is not None:
        parse(filter_text)  # show an error in the filter with its position, before asking for anything
    given = keys_from(keys, key_file)
    password = session_password(name, session_password_file)

    async def work(sessions: Sessions) -> SessionSubscription:
        return await sessions.subscribe(
            name, topic_filter, qos=qos, filter=filter_text, ttl_s=ttl, max=most, subscription=subscription_name,
            keys=given, insecure=insecure, near=near, stale_s=stale, password=password,
        )  # fmt: skip

    found = ask(connection.client_of_its_own(), work)
    if as_json:
        typer.echo(json.dumps({"session": name, "subscription": tree_of(found)}, ensure_ascii=False))
    else:
        typer.echo(f"{name}: subscribed to {words_of(found)}")


@app.command()
@with_option_groups()
def unsubscribe(
    name: Name,
    topic_filter: TopicFilter,
    *,
    subscription_name: SubscriptionName = "",
    session_password_file: SessionPasswordFile = None,
    connection: AskingConnection,
    as_json: Json = False,
) -> None:
    """Remove a subscription from a session, for all its devices.

    Exits 1 if it does not exist, or if the broker cannot be reached or refuses.

    Example: whimbrel session unsubscribe ward 'ward/+/bed/#'
    """
    password = session_password(name, session_password_file)

    async def work(sessions: Sessions) -> None:
        await sessions.unsubscribe(name, topic_filter, subscription=subscription_name, password=password)

    ask(connection.client_of_its_own(), work)
    print_done(name, f"unsubscribed from {topic_filter}", as_json=as_json)
