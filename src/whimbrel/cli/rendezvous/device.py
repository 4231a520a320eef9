"""``whimbrel rendezvous device``: a device on a real Bluetooth adapter: it publishes, seeks, or only listens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.options.groups import with_option_groups
from whimbrel.cli.rendezvous.asking import Prompt, check_terminal
from whimbrel.cli.rendezvous.device_options import (
    MeetingOptions,
    MemberOptions,
    RadioOptions,
    SoughtOptions,
    read_keys,
)
from whimbrel.cli.rendezvous.groups import read_owner, read_secret
from whimbrel.cli.rendezvous.running import print_json, run_until_signal
from whimbrel.errors import InvalidValueError, Phrase

if TYPE_CHECKING:  # other commands need not load Bluetooth
    from whimbrel.rendezvous.daemon.device import DeviceDaemon
    from whimbrel.rendezvous.device import Device
    from whimbrel.rendezvous.device.admission import Admission
    from whimbrel.rendezvous.device.commands import DeviceCommand
    from whimbrel.rendezvous.events import GroupKey
    from whimbrel.rendezvous.tokens import GroupOwner

__all__ = ["app"]

app = typer.Typer(
    help="Be a device: publish, seek others, be found, join a group; each line of output is JSON.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Id = Annotated[str, typer.Argument(metavar="ID", help="The event's identifier, such as P1 or S3.")]


@app.command()
@with_option_groups()
def publish(*, radio: RadioOptions, member: MemberOptions, meeting: MeetingOptions) -> None:
    """Publish this device: to every device, or with --group only to members of one of these groups.

    Example: whimbrel rendezvous device publish --transport usb:0 --name Bob
    """
    case = _Case(radio, member, meeting)
    _run(case, lambda device: device.publish(keys=case.groups, is_lasting=not meeting.once))


@app.command()
@with_option_groups()
def subscribe(*, radio: RadioOptions, sought: SoughtOptions, member: MemberOptions, meeting: MeetingOptions) -> None:
    """Seek a device by name, address or class; an option that is omitted matches anything.

    With --group also finds publications for members of these groups. If several devices match, they are listed;
    subscribe again with a narrower template.

    Example: whimbrel rendezvous device subscribe --transport usb:0 --name Alice --seek-name Bob
    """
    case = _Case(radio, member, meeting)
    wanted = sought.template(case.groups)
    _run(case, lambda device: device.subscribe(wanted, is_lasting=not meeting.once))


@app.command()
@with_option_groups()
def listen(*, radio: RadioOptions, meeting: MeetingOptions) -> None:
    """Stay discoverable until a controller comes: it finds the device, publishes for it, and makes it undiscoverable.

    Example: whimbrel rendezvous device listen --transport usb:0 --name Carol
    """
    _run(_Case(radio, meeting=meeting), lambda _device: (), is_discoverable=True)


@app.command()
@with_option_groups(within=60.0)
def unpublish(identifier: Id, *, radio: RadioOptions) -> None:
    """Remove an event that this device (this address) left with the controller; exits 1 if there is none.

    Example: whimbrel rendezvous device unpublish P1 --transport usb:0 --name Bob
    """
    from whimbrel.rendezvous.events import Kind, kind_of, read_event_id
    from whimbrel.rendezvous.messages import Unpublish, Unsubscribe

    event = read_event_id(identifier)
    message = Unpublish(event) if kind_of(event) is Kind.PUBLICATION else Unsubscribe(event)
    lines = _run(_Case(radio), lambda device: device.request(message), is_request=True)
    if "removed" not in lines:
        raise typer.Exit(1)


@app.command()
@with_option_groups()
def renew(
    identifier: Id,
    *,
    radio: RadioOptions,
    sought: SoughtOptions,
    member: MemberOptions,
    meeting: MeetingOptions,
) -> None:
    """Continue an event of an earlier run by its identifier; if the controller has forgotten it, submit it again.

    Example: whimbrel rendezvous device renew P1 --transport usb:0 --name Bob
    """
    from whimbrel.rendezvous.events import Kind, kind_of, read_event_id

    event = read_event_id(identifier)
    case = _Case(radio, member, meeting)
    wanted = sought.template(case.groups)

    def begin(device: Device) -> Iterable[DeviceCommand]:
        is_publication = kind_of(event) is Kind.PUBLICATION
        what = device.describe(keys=case.groups) if is_publication else wanted
        return device.resume(event, what, is_lasting=not meeting.once)

    _run(case, begin)


@app.command()
@with_option_groups(within=120.0)
def join(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group's public key, as `group create` prints it.")],
    *,
    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="The device's secret, from `group token`.")],
    tokens: Annotated[Path, typer.Option("--tokens", metavar="FILE", help="Where the group token is added.")],
    radio: RadioOptions,
    sought: SoughtOptions,
) -> None:
    """Seek the owner of a group and ask to be admitted, then store the group token that the owner issues.

    The device shows its token and public key, never its secret, and checks the group token before storing it. The owner
    runs `device admit`, and has a minute to decide. One line says `joined`, or `not admitted` with the reason; then the
    exit code is 1.

    Example: whimbrel rendezvous device join "$FAMILY" --transport usb:0 --name Alice --key alice.key --tokens
    alice.tokens --seek-name Carol
    """
    (public,) = read_keys([group], what="GROUP")
    wanted = sought.template(())
    with tokens.open("a"):
        pass  # find a file that cannot be written before asking the owner
    case = _Case(radio, MemberOptions(key=key, tokens=tokens), joins=public)
    lines = _run(case, lambda device: device.subscribe(wanted, is_lasting=True), is_request=True)
    if "joined" in lines:
        return
    if "not admitted" not in lines:
        reason = "several devices match: seek one of those listed" if "listed" in lines else "no owner has answered"
        print_json({"what": "not admitted", "reason": reason})
    raise typer.Exit(1)


@app.command()
@with_option_groups()
def admit(
    *,
    group_key: Annotated[Path, typer.Option("--group-key", metavar="FILE", help="The group's secret: you own it.")],
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="HEX", help="Admit the device with this public key; may be repeated."),
    ] = None,
    anyone: Annotated[bool, typer.Option("--anyone", help="Admit every device that asks.")] = False,
    ask: Annotated[bool, typer.Option("--ask", help="Ask on the terminal about each device: y or n.")] = False,
    radio: RadioOptions,
) -> None:
    """Publish this device as the owner of a group, and admit devices that meet it and ask (`device join`).

    Give one of --allow, --anyone and --ask. A list and a question name public keys, which `group token --json` prints
    as device_key, because an address can be forged. Questions go to standard error; each answer is one line.

    Example: whimbrel rendezvous device admit --transport usb:0 --name Carol --group-key family.key --ask
    """
    if sum((bool(allow), anyone, ask)) != 1:
        found = Phrase("more than one" if allow or anyone or ask else "nothing")
        raise InvalidValueError("who is admitted", found, "one of --allow, --anyone and --ask")
    if ask:
        check_terminal()
    from whimbrel.rendezvous.device.admission import admit_everyone, admit_listed

    chosen = admit_listed(read_keys(allow, what="--allow", key_of="device")) if allow else admit_everyone
    case = _Case(radio, owner=read_owner(group_key), admission=None if ask else chosen)
    _run(case, lambda device: device.publish(is_lasting=True))


@dataclass(frozen=True, slots=True)
class _Case:
    """The options of a device's command."""

    radio: RadioOptions
    member: MemberOptions = field(default_factory=MemberOptions)
    meeting: MeetingOptions = field(default_factory=MeetingOptions)
    joins: GroupKey | None = None
    owner: GroupOwner | None = None
    admission: Admission | None = None
    """Rule that decides who is admitted to the group; ``None``: the owner decides on the terminal."""

    @property
    def asks(self) -> bool:
        """Whether the owner of a group decides about each device on the terminal."""
        return self.owner is not None and self.admission is None

    @property
    def groups(self) -> tuple[GroupKey, ...]:
        """The groups given as options."""
        return read_keys(self.member.group, what="--group")


def _run(
    case: _Case,
    begin: Callable[[Device], Iterable[DeviceCommand]],
    *,
    is_discoverable: bool = False,
    is_request: bool = False,
) -> set[str]:
    """Run a device and print its events; return the kinds of events."""
    from whimbrel.rendezvous.daemon.device import DeviceDaemon, DeviceSettings, Happening
    from whimbrel.rendezvous.device.admission import ask_owner
    from whimbrel.rendezvous.device.peers import JOIN_US
    from whimbrel.rendezvous.events import Address

    radio, member = case.radio, case.member
    if case.groups and member.key is None:
        raise InvalidValueError("--key", Phrase("nothing"), "the device's secret: without it no membership is proven")
    settings = DeviceSettings(
        transport=radio.transport,
        name=radio.name,
        device_class=radio.device_class,
        seed=None if member.key is None else read_secret(member.key),
        tokens=member.tokens,
        unpaired=radio.unpaired,
        link_keys=radio.link_keys,
        is_discoverable=is_discoverable,
        says=case.meeting.say,
        verifies=bool(case.groups),
        joins=case.joins,
        owner=case.owner,
        admission=case.admission or ask_owner,
    )
    seen: set[str] = set()

    async def serve(stop: asyncio.Event) -> None:
        def until(daemon: DeviceDaemon) -> asyncio.Task[None]:
            ends = [stop]
            if case.meeting.once:
                ends.append(daemon.ended_meeting)
            if is_request:
                ends.append(daemon.answered)
            return asyncio.get_running_loop().create_task(_first(ends, radio.within))

        def told(line: Happening) -> None:
            seen.add(str(line["what"]))
            print_json(line)
            if line["what"] == "asks to join" and prompt is not None:
                now = asyncio.get_running_loop().time()
                prompt.ask(Address(str(line["address"])), str(line["reason"]), now=now)

        daemon = DeviceDaemon(settings, told=told)
        prompt = Prompt(daemon.admit, patience_s=JOIN_US / 1e6) if case.asks else None
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
