"""The entry point: collects the command groups and turns our errors into messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from whimbrel import __version__
from whimbrel.cli.options.help_texts import in_short, with_whole_examples
from whimbrel.errors import LanguageError, WhimbrelError

__all__ = ["app", "main"]

_COMMANDS = {
    "backup": "whimbrel.cli.backup.command:backup",
    "demo": "whimbrel.cli.demo.command:demo",
    "doctor": "whimbrel.cli.service.doctor:doctor",
    "key": "whimbrel.cli.service.key:key",
    "match": "whimbrel.cli.match:match",
    "publish": "whimbrel.cli.publish:publish",
    "reload": "whimbrel.cli.service.control:reload",
    "restore": "whimbrel.cli.backup.command:restore",
    "serve": "whimbrel.cli.serve:serve",
    "status": "whimbrel.cli.service.control:status",
    "subscribe": "whimbrel.cli.subscribe:subscribe",
    "tickertape": "whimbrel.cli.ticker.command:tickertape",
    "warm-up": "whimbrel.cli.service.warm_up:warm_up",
    "campus": "whimbrel.cli.campus:app",
    "clients": "whimbrel.cli.clients.command:app",
    "bench": "whimbrel.cli.bench:app",
    "filter": "whimbrel.cli.filter:app",
    "lab": "whimbrel.cli.lab:app",
    "log": "whimbrel.cli.log:app",
    "near": "whimbrel.cli.near:app",
    "nearby": "whimbrel.cli.nearby:app",
    "pipeline": "whimbrel.cli.pipeline.command:app",
    "policy": "whimbrel.cli.policy:app",
    "rendezvous": "whimbrel.cli.rendezvous.command:app",
    "session": "whimbrel.cli.session.command:app",
    "sim": "whimbrel.cli.sim:app",
    "user": "whimbrel.cli.user:app",
}
"""Module and object of every command and command group, in the order of ``--help``."""

_IN_SHORT = {
    "backup": "Copy the data of a broker, which goes on serving.",
    "bench": "Measure how fast a broker is.",
    "campus": "Samples carried by people who meet, with no server.",
    "clients": "List, show and disconnect the clients of a broker.",
    "demo": "Watch a made-up hospital ward: broker, devices, pipeline.",
    "doctor": "Check what a broker needs: settings, disk, ports, users.",
    "filter": "Test, explain and check filters.",
    "key": "Make a key for publications that only some may read.",
    "lab": "Make the papers' tables and figures again.",
    "log": "Import, export, show and verify the log of a node.",
    "match": "Tell which subscriptions want which events, from files.",
    "near": "Explain which subscriptions hear a publication at a place.",
    "nearby": "Events around the place they come from, without a server.",
    "pipeline": "Whole logs on Spark: tables, streams, replay.",
    "policy": "Test policies over device state, put them into a broker.",
    "publish": "Publish a message, or many.",
    "reload": "Have a broker read users, rights and certificates again.",
    "rendezvous": "Introduce devices that are not discoverable.",
    "restore": "Make a data directory of a backup.",
    "serve": "Run a broker for MQTT 5 and 3.1.1.",
    "session": "Create, join and change sessions that devices share.",
    "sim": "Simulate people who carry samples for each other.",
    "status": "Print what is going on in a broker of this machine.",
    "subscribe": "Subscribe, and print each message.",
    "tickertape": "Follow groups on one scrolling line, and write to them.",
    "user": "Add, list and remove the users of a broker.",
    "warm-up": "Compile the matcher and ready Spark, once on this machine.",
}
"""Description of each command in ``whimbrel --help``, short enough for 80 columns."""


class _CommandsOnDemand(MutableMapping[str, Any]):
    """The commands by name; a command's module is imported when the command is first used."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 # a command of typer's own click
        if name not in self._loaded:
            module, _, attribute = _COMMANDS[name].partition(":")
            found = getattr(import_module(module), attribute)
            of_one = typer.Typer(rich_markup_mode=None, add_completion=False)
            if isinstance(found, typer.Typer):
                of_one.add_typer(found, name=name)
            else:
                of_one.command(name)(found)
            command = _with_help_texts(typer.main.get_group(of_one).commands[name])
            command.short_help = _IN_SHORT[name]
            self._loaded[name] = command
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:  # noqa: ANN401 # the same
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


def _with_help_texts(command: Any) -> Any:  # noqa: ANN401 # a command of typer's own click
    command.short_help = in_short(command.help or "")
    command.help = with_whole_examples(command.help or "")
    for member in getattr(command, "commands", {}).values():
        _with_help_texts(member)
    return command


class _Group(typer.core.TyperGroup):
    """All commands; one command does not load the others, which would triple the start time of ``whimbrel user``."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 # those of typer
        super().__init__(**settings)
        self.commands = _CommandsOnDemand()


app = typer.Typer(
    name="whimbrel",
    help=(
        "Publish/subscribe for devices that move, sleep and disappear.\n\n"
        "To begin, type these, and see the first message arrive; `whimbrel COMMAND --help` has more examples:\n\n"
        "\b\n"
        "  whimbrel serve --data whimbrel-data &\n"
        "  whimbrel subscribe 'home/#' --filter 'value > 20' &\n"
        "  whimbrel publish home/kitchen 21.5"
    ),
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"whimbrel {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    del version  # the callback has printed it


def main() -> None:
    """Run the command line; the process exits with 0, 1 or 2 (130 if interrupted)."""
    try:
        app(prog_name="whimbrel")
    except LanguageError as error:
        _fail(error.pointed())
    except WhimbrelError as error:
        _fail(f"error: {error}")
    except BrokenPipeError:
        # The reader of the pipe has closed it (`| head`): end without a message.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(f"error: {error.filename or 'system'}: {error.strerror or error}")
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(message: str) -> None:
    typer.echo(message, err=True)
    sys.exit(2)
