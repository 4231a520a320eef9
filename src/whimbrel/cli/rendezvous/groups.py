"""``whimbrel rendezvous group``: groups of friends, their owners' keys and their members' tokens (Huang, 2.3).

Rule: a secret is in a file that only its owner may read; it is never an argument and never printed. A file that others
may read is refused, because any reader could admit members, or pose as the device.
Rule: owner and device exchange only tokens and public keys, never a secret.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.errors import InvalidValueError, Phrase

if TYPE_CHECKING:  # other commands need not load keys
    from whimbrel.rendezvous.tokens import GroupOwner

__all__ = ["app", "read_owner", "read_secret"]

_DAY_US = 86_400_000_000
_SECRET = re.compile(r"([0-9a-fA-F]{64})(?:\s+epoch ([0-9]{1,10}))?\s*")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
AddressText = Annotated[str, typer.Option("--address", metavar="ADDRESS", help="The device's, as 00:1A:7D:DA:71:0B.")]
GroupText = Annotated[str, typer.Option("--group", metavar="HEX", help="The group's public key.")]
GroupFile = Annotated[Path, typer.Argument(metavar="FILE", help="Where the group's secret is kept.")]

app = typer.Typer(
    help="Make groups of friends: the owner admits devices, and every device can verify another's membership.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def create(file: GroupFile, *, as_json: AsJson = False) -> None:
    """Make a group, of which you are the owner, and print its public key, by which devices name it.

    Only you can read the secret in FILE; anyone who has the secret can admit members. A file that exists is left
    unchanged, and its public key is printed.

    Example: whimbrel rendezvous group create family.key
    """
    if not file.exists():
        _write(file, secrets.token_hex(32), epoch=1)
    _print_group(read_owner(file), as_json=as_json)


@app.command()
def token(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the device's secret is kept; made if need be.")],
    *,
    address: AddressText,
    as_json: AsJson = False,
) -> None:
    """Print a device's token: its address and public key, signed with the device's secret.

    The token is not secret. Give it to the owner of a group, who makes a group token from it.

    Example: whimbrel rendezvous group token phone.key --address 00:1A:7D:DA:71:0B
    """
    from whimbrel.rendezvous.events import read_address
    from whimbrel.rendezvous.tokens import DeviceKeys

    where = read_address(address)
    if not file.exists():
        _write(file, secrets.token_hex(32))
    keys = DeviceKeys(_read(file)[0])
    made = keys.token(where).hex()
    shown = {"address": where, "device_key": keys.public.hex(), "token": made}
    typer.echo(json.dumps(shown) if as_json else made)


@app.command()
def admit(
    device_token: Annotated[
        str, typer.Argument(metavar="DEVICE_TOKEN", help="The device's, as `group token` prints it.")
    ],
    *,
    group_key: Annotated[Path, typer.Option("--group-key", metavar="FILE", help="The group's secret: you own it.")],
    address: AddressText,
    days: Annotated[
        int, typer.Option("--days", metavar="N", min=1, max=3_650, help="How long the token is good.")
    ] = 365,
    as_json: AsJson = False,
) -> None:
    """Admit a device to a group you own, and print its group token.

    The device signed its address; you sign that signature (2.3 of the thesis). The token is valid for this device, this
    address, this group and its current epoch, until it expires. The token is not secret: to use it, the device must
    answer a fresh challenge with its own secret. Exits 1 if the device token does not belong to the device at this
    address.

    Example: whimbrel rendezvous group admit "$TOKEN" --group-key family.key --address 00:1A:7D:DA:71:0B
    """
    from whimbrel.model.clock import SystemClock, format_time
    from whimbrel.rendezvous.events import read_address
    from whimbrel.rendezvous.tokens import TokenError, device_key_of

    owner, where, shown_token = read_owner(group_key), read_address(address), _hex("DEVICE_TOKEN", device_token)
    expires_at = SystemClock().now() + days * _DAY_US
    try:
        key = device_key_of(shown_token)
        made = owner.admit(shown_token, device_key=key, peer=where, expires_at=expires_at).hex()
    except TokenError as error:
        reason = error.fault.value
        typer.echo(json.dumps({"admitted": False, "reason": reason}) if as_json else f"not admitted: {reason}")
        raise typer.Exit(1) from None
    if as_json:
        shown = {"group": owner.public.hex(), "address": where, "epoch": owner.epoch, "device_key": key.hex()}
        typer.echo(json.dumps({"admitted": True, **shown, "expires_at": format_time(expires_at), "token": made}))
    else:
        typer.echo(made)


@app.command()
def verify(
    group_token: Annotated[str, typer.Argument(metavar="TOKEN", help="A group token, as `group admit` prints it.")],
    *,
    group: GroupText,
    address: AddressText,
    epoch: Annotated[int, typer.Option("--epoch", metavar="N", min=0, help="Refuse tokens of lower epochs.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Check whether a token proves that the device at an address is a member of a group; exit 1 if not.

    Example: whimbrel rendezvous group verify "$TOKEN" --group "$FAMILY" --address 00:1A:7D:DA:71:0B
    """
    from whimbrel.model.clock import SystemClock, format_time
    from whimbrel.rendezvous.events import KEY_BYTES, GroupKey, read_address
    from whimbrel.rendezvous.tokens import TokenError, check_group_token

    public = GroupKey(_hex("--group", group))
    if len(public) != KEY_BYTES:
        raise InvalidValueError("--group", Phrase(f"{len(public)} bytes"), f"a public key of {KEY_BYTES} bytes")
    where, now, shown_token = read_address(address), SystemClock().now(), _hex("TOKEN", group_token)
    try:
        member = check_group_token(shown_token, group=public, address=where, now=now, least_epoch=epoch)
    except TokenError as error:
        reason = error.fault.value
        typer.echo(json.dumps({"member": False, "reason": reason}) if as_json else f"no member: {reason}")
        raise typer.Exit(1) from None
    until = format_time(member.expires_at)
    shown = {"member": True, "address": member.address, "epoch": member.epoch, "expires_at": until}
    typer.echo(json.dumps(shown) if as_json else f"member: {member.address} until {until}, epoch {member.epoch}")


@app.command()
def rekey(
    file: GroupFile,
    *,
    epoch: Annotated[
        bool, typer.Option("--epoch", help="Keep the group's key and raise its epoch: its name stays the same.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Revoke every token of a group you own: give it new keys, or a higher epoch; then admit the remaining members.

    New keys make a new group, which devices have to name from now on. A higher epoch leaves its name unchanged; a
    controller or device refuses the old tokens once it has seen a new one.

    Example: whimbrel rendezvous group rekey family.key --epoch
    """
    from whimbrel.rendezvous.tokens import MAX_EPOCH

    owner = read_owner(file)
    if epoch and owner.epoch >= MAX_EPOCH:
        raise InvalidValueError(str(file), Phrase(f"epoch {owner.epoch}"), f"an epoch below {MAX_EPOCH}, or new keys")
    secret = _read(file)[0].hex() if epoch else secrets.token_hex(32)
    beside = file.with_name(file.name + ".new")
    beside.unlink(missing_ok=True)
    _write(beside, secret, epoch=owner.epoch + 1 if epoch else 1)
    beside.replace(file)
    _print_group(read_owner(file), as_json=as_json)


# -- files -----------------------------------------------------------------------------------------------------------


def _print_group(owner: GroupOwner, *, as_json: bool) -> None:
    public = owner.public.hex()
    typer.echo(json.dumps({"group": public, "epoch": owner.epoch}) if as_json else public)


def read_owner(file: Path) -> GroupOwner:
    """Return the owner of the group whose secret is in *file*; refuse a file that others can read."""
    from whimbrel.rendezvous.tokens import GroupOwner

    seed, epoch = _read(file)
    return GroupOwner(seed, epoch=epoch)


def read_secret(file: Path) -> bytes:
    """Return a device's secret in *file*; refuse a file that others can read."""
    return _read(file)[0]


def _read(file: Path) -> tuple[bytes, int]:
    """Return the secret in *file* and its epoch; the content of the file is never shown."""
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        allowed = f"a file that nobody else may read or write: chmod 600 {file}"
        raise InvalidValueError(str(file), Phrase(f"a secret key with mode {mode:04o}"), allowed)
    text = file.read_text(encoding="ascii", errors="replace")
    found = _SECRET.fullmatch(text)
    if found is None:
        raise InvalidValueError(
            str(file),
            Phrase(f"{len(text)} characters"),
            "64 hexadecimal digits: a secret key; of a group, its epoch, too",
        )
    return bytes.fromhex(found[1]), int(found[2] or 1)


def _write(file: Path, secret: str, *, epoch: int | None = None) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as stream:
        stream.write(f"{secret}\n" if epoch is None else f"{secret}\nepoch {epoch}\n")
        stream.flush()
        os.fsync(stream.fileno())


def _hex(what: str, text: str) -> bytes:
    try:
        return bytes.fromhex(text.strip())
    except ValueError:
        raise InvalidValueError(what, Phrase(f"{len(text)} characters"), "hexadecimal digits") from None
