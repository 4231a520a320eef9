"""``whimbrel rendezvous device``: a device on a real Bluetooth adapter: it publishes, seeks, or only listens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.options.values import seconds_between
from whimbrel.cli.rendezvous.asking import Prompt, check_terminal
from whimbrel.cli.rendezvous.groups import read_owner, read_secret
from whimbrel.cli.rendezvous.running import print_json, run_until_signal
from whimbrel.errors import InvalidValueError, Phrase

if TYPE_CHECKING:  # Bluetooth need not be loaded for other commands
    from whimbrel.rendezvous.daemon.device import DeviceDaemon
    from whimbrel.rendezvous.device import Device
    from whimbrel.rendezvous.device.admission import Admission
    from whimbrel.rendezvous.device.commands import DeviceCommand
    from whimbrel.rendezvous.events import GroupKey, Subscription
    from whimbrel.rendezvous.tokens import GroupOwner

__all__ = ["app"]

app = typer.Typer(
    help="Be a device: publish, seek others, be found, join a group; each line of output is JSON.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Transport = Annotated[str, typer.Option("--transport", metavar="ADAPTER", help="The adapter: usb:0, hci-socket:0, …")]
Name = Annotated[str, typer.Option("--name", metavar="NAME", help="How the device calls itself.")]
Class = Annotated[int, typer.Option("--class", metavar="N", min=0, max=0xFFFFFF, help="Its class of device.")]
Key = Annotated[
    Path | None, typer.Option("--key", metavar="FILE", help="The device's secret, as `group token` makes it.")
]
Tokens = Annotated[
    Path | None,
    typer.Option(
        "--tokens", metavar="FILE", help="Its group tokens: a line each, the group's public key and the token."
    ),
]
Groups = Annotated[
    list[str] | None, typer.Option("--group", metavar="HEX", help="A group's public key; may be given several times.")
]
Says = Annotated[str, typer.Option("--say", metavar="TEXT", help="What is sent to each device that is met.")]
Once = Annotated[bool, typer.Option("--once", help="End after one meeting; without, the event is renewed.")]
Within = Annotated[
    float | None,
    typer.Option("--within", metavar="TIME", parser=seconds_between(0.1, 31_536_000), help="End after this time."),
]
Unpaired = Annotated[
    str, typer.Option("--unpaired", metavar="HOW", help="Devices that are not paired: accept, refuse or pair them.")
]
LinkKeys = Annotated[
    Path | None, typer.Option("--link-keys", metavar="FILE", help="The file of link keys, for --unpaired.")
]
SoughtName = Annotated[str | None, typer.Option("--seek-name", metavar="NAME", help="The name that is sought.")]
SoughtAddress = Annotated[
    str | None, typer.Option("--seek-address", metavar="ADDRESS", help="The address that is sought.")
]
SoughtClass = Annotated[
    int | None, typer.Option("--seek-class", metavar="N", min=0, max=0xFFFFFF, help="The class that is sought.")
]
Id = Annotated[str, typer.Argument(metavar="ID", help="The event's identifier, such as P1 or S3.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What every command of a device has."""

    transport: str
    name: str
    device_class: int = 0
    key: Path | None = None
    tokens: Path | None = None
    groups: tuple[GroupKey, ...] = ()
    says: str = ""
    once: bool = False
    within: float | None = None
    unpaired: str = "accept"
    link_keys: Path | None = None
    joins: GroupKey | None = None
    owner: GroupOwner | None = None
    admission: Admission | None = None
    """Who is admitted to the group; ``None``: its owner is asked on the terminal."""

    @property
    def asks(self) -> bool:
        """Whether the owner of a group is asked about each device."""
        return self.owner is not None and self.admission is None


@app.command()
def publish(
    *,
    transport: Transport,
    name: Name,
    device_class: Class = 0,
    key: Key = None,
    tokens: Tokens = None,
    group: Groups = None,
    say: Says = "",
    once: Once = False,
    within: Within = None,
    unpaired: Unpaired = "accept",
    link_keys: LinkKeys = None,
) -> None:
    """Be available: to every device, or with --group to members of one of these groups only.

    Example: whimbrel rendezvous device publish --transport usb:0 --name Bob
    """
    options = _Options(
        transport=transport,
        name=name,
        device_class=device_class,
        key=key,
        tokens=tokens,
        groups=_groups(group),
        says=say,
        once=once,
        within=within,
        unpaired=unpaired,
        link_keys=link_keys,
    )
    _run(options, lambda device: device.publish(keys=options.groups, is_lasting=not once))


@app.command()
def subscribe(
    *,
    transport: Transport,
    name: Name,
    device_class: Class = 0,
    seek_name: SoughtName = None,
    seek_address: SoughtAddress = None,
    seek_class: SoughtClass = None,
    key: Key = None,
    tokens: Tokens = None,
    group: Groups = None,
    say: Says = "",
    once: Once = False,
    within: Within = None,
    unpaired: Unpaired = "accept",
    link_keys: LinkKeys = None,
) -> None:
    """Seek a device by name, address or class; what is not given matches anything.

    With --group publications of members of these groups are found, too. Where several devices match they are listed;
    subscribe again with a narrower template.

    Example: whimbrel rendezvous device subscribe --transport usb:0 --name Alice --seek-name Bob
    """
    options = _Options(
        transport=transport,
        name=name,
        device_class=device_class,
        key=key,
        tokens=tokens,
        groups=_groups(group),
        says=say,
        once=once,
        within=within,
        unpaired=unpaired,
        link_keys=link_keys,
    )
    wanted = _template(seek_name, seek_address, seek_class, options.groups)
    _run(options, lambda device: device.subscribe(wanted, is_lasting=not once))


@app.command()
def listen(
    *,
    transport: Transport,
    name: Name,
    device_class: Class = 0,
    say: Says = "",
    once: Once = False,
    within: Within = None,
    unpaired: Unpaired = "accept",
    link_keys: LinkKeys = None,
) -> None:
    """Be discoverable until a controller comes: it finds the device, publishes for it, and has it hide.

    Example: whimbrel rendezvous device listen --transport usb:0 --name Carol
    """
    options = _Options(
        transport=transport,
        name=name,
        device_class=device_class,
        says=say,
        once=once,
        within=within,
        unpaired=unpaired,
        link_keys=link_keys,
    )
    _run(options, lambda _device: (), is_discoverable=True)


@app.command()
def unpublish(
    identifier: Id,
    *,
    transport: Transport,
    name: Name,
    within: Within = 60.0,
    unpaired: Unpaired = "accept",
    link_keys: LinkKeys = None,
) -> None:
    """Remove an event that this device (this address) left with the controller; exits 1 if there is none.

    Example: whimbrel rendezvous device unpublish P1 --transport usb:0 --name Bob
    """
    from whimbrel.rendezvous.events import Kind, kind_of, read_event_id
    from whimbrel.rendezvous.messages import Unpublish, Unsubscribe

    event = read_event_id(identifier)
    message = Unpublish(event) if kind_of(event) is Kind.PUBLICATION else Unsubscribe(event)
    options = _Options(transport=transport, name=name, within=within, unpaired=unpaired, link_keys=link_keys)
    lines = _run(options, lambda device: device.request(message), is_request=True)
    if "removed" not in lines:
        raise typer.Exit(1)


@app.command()
def renew(
    identifier: Id,
    *,
    transport: Transport,
    name: Name,
    device_class: Class = 0,
    seek_name: SoughtName = None,
    seek_address: SoughtAddress = None,
    seek_class: SoughtClass = None,
    key: Key = None,
    tokens: Tokens = None,
    group: Groups = None,
    say: Says = "",
    once: Once = False,
    within: Within = None,
    unpaired: Unpaired = "accept",
    link_keys: LinkKeys = None,
) -> None:
    """Go on with an event of an earlier run by its identifier; if the controller has forgotten it, submit it again.

    Example: whimbrel rendezvous device renew P1 --transport usb:0 --name Bob
    """
    from whimbrel.rendezvous.events import Kind, kind_of, read_event_id

    event = read_event_id(identifier)
    options = _Options(
        transport=transport,
        name=name,
        device_class=device_class,
        key=key,
        tokens=tokens,
        groups=_groups(group),
        says=say,
        once=once,
        within=within,
        unpaired=unpaired,
        link_keys=link_keys,
    )
    wanted = _template(seek_name, seek_address, seek_class, options.groups)

    def begin(device: Device) -> Iterable[DeviceCommand]:
        is_publication = kind_of(event) is Kind.PUBLICATION
        what = device.describe(keys=options.groups) if is_publication else wanted
        return device.resume(event, what, is_lasting=not once)

    _run(options, begin)


@app.command()
def join(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group's public key, as `group create` prints it.")],
    *,
    transport: Transport,
    name: Name,
    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="The device's secret, from `group token`.")],
    tokens: Annotated[Path, typer.Option("--tokens", metavar="FILE", help="Where the group token is added.")],
    device_class: Class = 0,
    seek_name: SoughtName = None,
    seek_address: SoughtAddress = None,
    seek_class: SoughtClass = None,
    within: Within = 120.0,
    unpaired: Unpaired = "accept",
    link_keys: LinkKeys = None,
) -> None:
    """Seek the owner of a group, ask it to take this device in, and keep the group token that it issues.

    The device shows its token and public key, never its secret, and checks the group token before it keeps it. The
    owner runs `device admit`; it has a minute to decide. One line says `joined`, or `not admitted` with the reason:
    then the exit code is 1.

    Example: whimbrel rendezvous device join "$FAMILY" --transport usb:0 --name Alice --key alice.key --tokens
    alice.tokens --seek-name Carol
    """
    (public,) = _groups([group], what="GROUP")
    options = _Options(
        transport=transport,
        name=name,
        device_class=device_class,
        key=key,
        tokens=tokens,
        within=within,
        unpaired=unpaired,
        link_keys=link_keys,
        joins=public,
    )
    wanted = _template(seek_name, seek_address, seek_class, ())
    with tokens.open("a"):
        pass  # a file that cannot be written is found before the owner is asked
    lines = _run(options, lambda device: device.subscribe(wanted, is_lasting=True), is_request=True)
    if "joined" in lines:
        return
    if "not admitted" not in lines:
        reason = "several devices match: seek one of those listed" if "listed" in lines else "no owner has answered"
        print_json({"what": "not admitted", "reason": reason})
    raise typer.Exit(1)


@app.command()
def admit(
    *,
    transport: Transport,
    name: Name,
    group_key: Annotated[Path, typer.Option("--group-key", metavar="FILE", help="The group's secret: you own it.")],
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="HEX", help="Admit the device with this public key; may be repeated."),
    ] = None,
    anyone: Annotated[bool, typer.Option("--anyone", help="Admit every device that asks.")] = False,
    ask: Annotated[bool, typer.Option("--ask", help="Ask on the terminal about each device: y or n.")] = False,
    device_class: Class = 0,
    within: Within = None,
    unpaired: Unpaired = "accept",
    link_keys: LinkKeys = None,
) -> None:
    """Publish this device as the owner of a group, and admit devices that meet it and ask (`device join`).

    Give one of --allow, --anyone and --ask. A list and a question name public keys, which `group token --json` prints
    as device_key: an address can be forged. What is asked is on standard error, and each answer is one line.

    Example: whimbrel rendezvous device admit --transport usb:0 --name Carol --group-key family.key --ask
    """
    if sum((bool(allow), anyone, ask)) != 1:
        found = Phrase("more than one" if allow or anyone or ask else "nothing")
        raise InvalidValueError("who is admitted", found, "one of --allow, --anyone and --ask")
    if ask:
        check_terminal()
    from whimbrel.rendezvous.device.admission import admit_everyone, admit_listed

    chosen = admit_listed(_groups(allow, what="--allow", key_of="device")) if allow else admit_everyone
    options = _Options(
        transport=transport,
        name=name,
        device_class=device_class,
        within=within,
        unpaired=unpaired,
        link_keys=link_keys,
        owner=read_owner(group_key),
        admission=None if ask else chosen,
    )
    _run(options, lambda device: device.publish(is_lasting=True))


def _run(
    options: _Options,
    begin: Callable[[Device], Iterable[DeviceCommand]],
    *,
    is_discoverable: bool = False,
    is_request: bool = False,
) -> set[str]:
    """Run a device, print what happens, and return the kinds of it."""
    from whimbrel.rendezvous.daemon.device import DeviceDaemon, DeviceSettings, Happening
    from whimbrel.rendezvous.device.admission import ask_owner
    from whimbrel.rendezvous.device.peers import JOIN_US
    from whimbrel.rendezvous.events import Address

    if options.groups and options.key is None:
        raise InvalidValueError("--key", Phrase("nothing"), "the device's secret: without it no membership is proven")
    settings = DeviceSettings(
        transport=options.transport,
        name=options.name,
        device_class=options.device_class,
        seed=None if options.key is None else read_secret(options.key),
        tokens=options.tokens,
        unpaired=options.unpaired,
        link_keys=options.link_keys,
        is_discoverable=is_discoverable,
        says=options.says,
        verifies=bool(options.groups),
        joins=options.joins,
        owner=options.owner,
        admission=options.admission or ask_owner,
    )
    seen: set[str] = set()

    async def serve(stop: asyncio.Event) -> None:
        def until(daemon: DeviceDaemon) -> asyncio.Task[None]:
            ends = [stop]
            if options.once:
                ends.append(daemon.ended_meeting)
            if is_request:
                ends.append(daemon.answered)
            return asyncio.get_running_loop().create_task(_first(ends, options.within))

        def told(line: Happening) -> None:
            seen.add(str(line["what"]))
            print_json(line)
            if line["what"] == "asks to join" and prompt is not None:
                now = asyncio.get_running_loop().time()
                prompt.ask(Address(str(line["address"])), str(line["reason"]), now=now)

        daemon = DeviceDaemon(settings, told=told)
        prompt = Prompt(daemon.admit, patience_s=JOIN_US / 1e6) if options.asks else None
        await daemon.serve(begin, until=until)

    run_until_signal(serve)
    return seen


async def _first(ends: list[asyncio.Event], within: float | None) -> None:
    tasks = [asyncio.ensure_future(each.wait()) for each in ends]
    try:
        await asyncio.wait(tasks, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in tasks:
            each.cancel()


def _template(
    name: str | None, address: str | None, device_class: int | None, groups: tuple[GroupKey, ...]
) -> Subscription:
    from whimbrel.rendezvous.events import Subscription, read_address

    where = None if address is None else read_address(address)
    return Subscription(name=name, address=where, device_class=device_class, keys=groups)


def _groups(texts: list[str] | None, *, what: str = "--group", key_of: str = "group") -> tuple[GroupKey, ...]:
    from whimbrel.rendezvous.events import KEY_BYTES, GroupKey

    groups = []
    for text in texts or ():
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            allowed = f"a {key_of}'s public key: {2 * KEY_BYTES} hexadecimal digits"
            raise InvalidValueError(what, Phrase(f"{len(text)} characters"), allowed)
        groups.append(GroupKey(key))
    return tuple(groups)
