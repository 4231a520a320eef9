"""``whimbrel user``: the users who may connect to a broker.

Rule: a password is never an argument, where other processes and the shell's history could see it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.options.passwords import password_from

if TYPE_CHECKING:  # other commands need not load password hashing
    from whimbrel.broker.access.users import Users

__all__ = ["app"]

app = typer.Typer(
    help="Keep the users file of a broker: add, list, remove.", no_args_is_help=True, rich_markup_mode=None
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]
File = Annotated[
    Path | None, typer.Option("--file", metavar="FILE", help="The users file; if not given, DIR/users of --data.")
]
Data = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="The broker's data folder, as given to `serve --data`.")
]
DEFAULT_DATA = Path("whimbrel-data")
_USERS = "users"


@app.command()
def add(
    name: Name,
    *,
    file: File = None,
    data: Data = DEFAULT_DATA,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="GROUP", help="A group the user is in; may be given several times."),
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option("--password-file", metavar="FILE", help="Read the password from here; - is standard input."),
    ] = None,
) -> None:
    """Add the user NAME, or give an existing user another password.

    Asks for the password twice, without showing it; --password-file takes it from the one line of a file instead. Only
    a hash of the password is kept. The groups of an existing user stay unchanged, unless --group is given.

    A broker uses the file `users` in its data folder, or the one in its settings: users in the section [access]. A
    running broker reads it again with `whimbrel reload`.

    Example: whimbrel user add ann --group nurses
    """
    from whimbrel.broker.access.users import check_group, check_user_name  # see Users above

    check_user_name(name)  # check the name before asking for a password
    for each in group or ():
        check_group(each)
    file = file or data / _USERS
    users = _read(file, missing_ok=True)
    password = _ask(name) if password_file is None else password_from(password_file)
    is_new = users.add(name, password, groups=group or None)
    typer.echo(f"{name}: added to {file}" if is_new else f"{name}: password changed in {file}")


@app.command("list")
def list_(
    *,
    file: File = None,
    data: Data = DEFAULT_DATA,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Print the users and their groups, one user per line.

    Example: whimbrel user list
    """
    file = file or data / _USERS
    users = _read(file)
    found = [(name, sorted(users.groups(name))) for name in users.names()]
    if as_json:
        typer.echo(json.dumps([{"name": name, "groups": groups} for name, groups in found], ensure_ascii=False))
        return
    for name, groups in found:
        typer.echo(f"{name}  ({', '.join(groups)})" if groups else name)
    if not found:
        typer.echo(f"{file} has no users")


@app.command()
def remove(name: Name, *, file: File = None, data: Data = DEFAULT_DATA) -> None:
    """Remove the user NAME; exit 1 if there is no such user.

    Example: whimbrel user remove ann
    """
    file = file or data / _USERS
    if not _read(file).remove(name):
        typer.echo(f"{name}: no such user in {file}", err=True)
        raise typer.Exit(1)
    typer.echo(f"{name}: removed from {file}")


def _read(file: Path, *, missing_ok: bool = False) -> Users:
    from whimbrel.broker.access.users import Users  # see above

    return Users.read(file, missing_ok=missing_ok)


def _ask(name: str) -> str:
    if not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to ask for the password; give --password-file")
    found: str = typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt="The same again", err=True)
    return found
