"""The entry point: gathers the command groups and turns our errors into messages and exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from whimbrel import __version__
from whimbrel.cli.bench import app as bench_app
from whimbrel.cli.filter import app as filter_app
from whimbrel.cli.lab import app as lab_app
from whimbrel.cli.log import app as log_app
from whimbrel.cli.match import match
from whimbrel.cli.near import app as near_app
from whimbrel.cli.nearby import app as nearby_app
from whimbrel.cli.pipeline.command import app as pipeline_app
from whimbrel.cli.policy import app as policy_app
from whimbrel.cli.publish import publish
from whimbrel.cli.rendezvous.command import app as rendezvous_app
from whimbrel.cli.serve import serve
from whimbrel.cli.service.doctor import doctor
from whimbrel.cli.service.key import key
from whimbrel.cli.service.warm_up import warm_up
from whimbrel.cli.session.command import app as session_app
from whimbrel.cli.sim import app as sim_app
from whimbrel.cli.subscribe import subscribe
from whimbrel.cli.ticker.command import tickertape
from whimbrel.cli.user import app as user_app
from whimbrel.cli.ward.command import demo
from whimbrel.errors import LanguageError, WhimbrelError

__all__ = ["app", "main"]

app = typer.Typer(
    name="whimbrel",
    help="Publish/subscribe for devices that move, sleep and disappear.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(bench_app, name="bench")
app.add_typer(filter_app, name="filter")
app.add_typer(lab_app, name="lab")
app.add_typer(log_app, name="log")
app.add_typer(near_app, name="near")
app.add_typer(nearby_app, name="nearby")
app.add_typer(pipeline_app, name="pipeline")
app.add_typer(policy_app, name="policy")
app.add_typer(rendezvous_app, name="rendezvous")
app.add_typer(session_app, name="session")
app.add_typer(sim_app, name="sim")
app.add_typer(user_app, name="user")
app.command("demo")(demo)
app.command("doctor")(doctor)
app.command("key")(key)
app.command("match")(match)
app.command("publish")(publish)
app.command("serve")(serve)
app.command("subscribe")(subscribe)
app.command("tickertape")(tickertape)
app.command("warm-up")(warm_up)


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
    """Run the command line; the process exits with 0, 1 or 2 (130 when interrupted)."""
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
