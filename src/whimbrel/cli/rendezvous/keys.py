"""``whimbrel rendezvous key``, ``admit`` and ``verify``: keys and tokens of groups of friends.

Rule: a secret is in a file that only its owner may read; it is never an argument and never printed.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from whimbrel.errors import InvalidValueError, Phrase

__all__ = ["admit", "key", "verify"]

_DAY_US = 86_400_000_000

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
AddressText = Annotated[str, typer.Option("--address", metavar="ADDRESS", help="The device's, as 00:1A:7D:DA:71:0B.")]
GroupText = Annotated[str, typer.Option("--group", metavar="HEX", help="The group's public key.")]


def key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the secret is kept; made if it is not there.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Make a pair of keys, for a device or for a group, and print the public one.

    The secret in FILE is readable by you only. The holder of a group's secret is its owner and may admit members. A new
    secret revokes every token of the old one.

    Example: whimbrel rendezvous key family.key
    """
    from whimbrel.rendezvous.tokens import SEED_BYTES, DeviceKeys

    if not file.exists():
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            stream.write(secrets.token_hex(SEED_BYTES) + "\n")
    public = DeviceKeys(_seed(file)).public.hex()
    typer.echo(json.dumps({"file": str(file), "public": public}) if as_json else public)


def admit(
    *,
    group_key: Annotated[Path, typer.Option("--group-key", metavar="FILE", help="The group's secret: you own it.")],
    device_key: Annotated[Path, typer.Option("--device-key", metavar="FILE", help="The device's secret.")],
    address: AddressText,
    epoch: Annotated[
        int, typer.Option("--epoch", metavar="N", min=0, help="A higher one revokes the tokens of lower ones.")
    ] = 1,
    days: Annotated[
        int, typer.Option("--days", metavar="N", min=1, max=3_650, help="How long the token is good.")
    ] = 365,
    as_json: AsJson = False,
) -> None:
    """Admit a device to a group you own, and print its group token.

    The device signs its address, the owner signs that (2.3 of the thesis): the token is good for this device, this
    address, this group and this epoch, until it expires. It is no secret: to use it, the device must answer a fresh
    challenge with its own secret.

    Example: whimbrel rendezvous admit --group-key family.key --device-key phone.key --address 00:1A:7D:DA:71:0B
    """
    from whimbrel.model.clock import SystemClock, format_time
    from whimbrel.rendezvous.events import read_address
    from whimbrel.rendezvous.tokens import DeviceKeys, GroupOwner

    owner, device, where = (
        GroupOwner(_seed(group_key), epoch=epoch),
        DeviceKeys(_seed(device_key)),
        read_address(address),
    )
    expires_at = SystemClock().now() + days * _DAY_US
    token = owner.admit(device.token(where), device_key=device.public, peer=where, expires_at=expires_at).hex()
    if as_json:
        shown = {"group": owner.public.hex(), "address": where, "epoch": epoch, "expires_at": format_time(expires_at)}
        typer.echo(json.dumps({**shown, "token": token}))
    else:
        typer.echo(token)


def verify(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="A group token, as `admit` prints it.")],
    *,
    group: GroupText,
    address: AddressText,
    epoch: Annotated[int, typer.Option("--epoch", metavar="N", min=0, help="Refuse tokens of lower epochs.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Tell whether a token proves that the device at an address is a member of a group; exit 1 if not.

    Example: whimbrel rendezvous verify "$TOKEN" --group "$FAMILY" --address 00:1A:7D:DA:71:0B
    """
    from whimbrel.model.clock import SystemClock, format_time
    from whimbrel.rendezvous.events import KEY_BYTES, GroupKey, read_address
    from whimbrel.rendezvous.tokens import TokenError, check_group_token

    public = GroupKey(_hex("--group", group))
    if len(public) != KEY_BYTES:
        raise InvalidValueError("--group", Phrase(f"{len(public)} bytes"), f"a public key of {KEY_BYTES} bytes")
    try:
        member = check_group_token(
            _hex("TOKEN", token),
            group=public,
            address=read_address(address),
            now=SystemClock().now(),
            least_epoch=epoch,
        )
    except TokenError as error:
        reason = error.fault.value
        typer.echo(json.dumps({"member": False, "reason": reason}) if as_json else f"no member: {reason}")
        raise typer.Exit(1) from None
    until = format_time(member.expires_at)
    shown = {"member": True, "address": member.address, "epoch": member.epoch, "expires_at": until}
    typer.echo(json.dumps(shown) if as_json else f"member: {member.address} until {until}, epoch {member.epoch}")


def _seed(file: Path) -> bytes:
    """Return the secret in *file*; what is in it is never shown."""
    text = file.read_text(encoding="ascii", errors="replace").strip()
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidValueError(
            str(file), Phrase(f"{len(text)} characters"), "64 hexadecimal digits: a secret key"
        ) from None


def _hex(what: str, text: str) -> bytes:
    try:
        return bytes.fromhex(text.strip())
    except ValueError:
        raise InvalidValueError(what, Phrase(f"{len(text)} characters"), "hexadecimal digits") from None
