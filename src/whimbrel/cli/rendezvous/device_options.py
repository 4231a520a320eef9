"""Options that the commands of a device share: radio, which device to seek, groups, and what to do when it is met."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.options.values import seconds_between
from whimbrel.errors import InvalidValueError, Phrase

if TYPE_CHECKING:  # help texts do not need templates
    from whimbrel.rendezvous.events import GroupKey, Subscription

__all__ = ["MeetingOptions", "MemberOptions", "RadioOptions", "SoughtOptions", "read_keys"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RadioOptions:
    """The adapter, the device's own description, and how long it runs."""

    transport: Annotated[
        str, typer.Option("--transport", metavar="ADAPTER", help="The adapter: usb:0, hci-socket:0, …")
    ]
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="How the device calls itself.")]
    device_class: Annotated[
        int, typer.Option("--class", metavar="N", min=0, max=0xFFFFFF, help="Its class of device.")
    ] = 0
    within: Annotated[
        float | None,
        typer.Option("--within", metavar="TIME", parser=seconds_between(0.1, 31_536_000), help="End after this time."),
    ] = None
    unpaired: Annotated[
        str, typer.Option("--unpaired", metavar="HOW", help="Devices that are not paired: accept, refuse or pair them.")
    ] = "accept"
    link_keys: Annotated[
        Path | None, typer.Option("--link-keys", metavar="FILE", help="The file of link keys, for --unpaired.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SoughtOptions:
    """Name, address and class of the device that is sought; an option that is left out matches anything."""

    seek_name: Annotated[str | None, typer.Option("--seek-name", metavar="NAME", help="The name that is sought.")] = (
        None
    )
    seek_address: Annotated[
        str | None, typer.Option("--seek-address", metavar="ADDRESS", help="The address that is sought.")
    ] = None
    seek_class: Annotated[
        int | None, typer.Option("--seek-class", metavar="N", min=0, max=0xFFFFFF, help="The class that is sought.")
    ] = None

    def template(self, groups: tuple[GroupKey, ...]) -> Subscription:
        """Return the subscription for the sought device, as a member of these *groups*."""
        from whimbrel.rendezvous.events import Subscription, read_address

        where = None if self.seek_address is None else read_address(self.seek_address)
        return Subscription(name=self.seek_name, address=where, device_class=self.seek_class, keys=groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """The groups of the device, with the proof of its membership."""

    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="The device's secret, as `group token` makes it.")
    ] = None
    tokens: Annotated[
        Path | None,
        typer.Option(
            "--tokens", metavar="FILE", help="Its group tokens: per line, the group's public key and the token."
        ),
    ] = None
    group: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="HEX", help="A group's public key; may be given several times."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingOptions:
    """Behaviour at a meeting: a connection with a device to which the controller introduced this one."""

    say: Annotated[str, typer.Option("--say", metavar="TEXT", help="Text to send to each device that is met.")] = ""
    once: Annotated[bool, typer.Option("--once", help="End after one meeting; without, the event is renewed.")] = False


def read_keys(texts: list[str] | None, *, what: str, key_of: str = "group") -> tuple[GroupKey, ...]:
    """Parse the public keys in *texts*, each of a group or of a device (*key_of*)."""
    from whimbrel.rendezvous.events import KEY_BYTES, GroupKey

    keys = []
    for text in texts or ():
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            allowed = f"a {key_of}'s public key: {2 * KEY_BYTES} hexadecimal digits"
            raise InvalidValueError(what, Phrase(f"{len(text)} characters"), allowed)
        keys.append(GroupKey(key))
    return tuple(keys)
