"""Groups of options: written once, spread over the commands that share them."""

from __future__ import annotations

import inspect
import shlex
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from whimbrel.cli.options.groups import with_option_groups
from whimbrel.cli.options.help_texts import in_short, with_whole_examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Two options."""

    name: Annotated[str, typer.Option("--name", help="A name.")]
    radius_m: Annotated[float, typer.Option("--radius")] = 5.0


@with_option_groups(radius_m=7.0)
def show(what: str, *, count: int = 1, place: Place) -> None:
    """Show a place."""
    typer.echo(f"{what} {count} {place}")


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["here", "--name", "a"], "here 1 Place(name='a', radius_m=7.0)"),
        (["here", "--radius", "2", "--name", "a", "--count", "3"], "here 3 Place(name='a', radius_m=2.0)"),
    ],
)
def test_a_group_reaches_its_command_as_one_value(arguments: list[str], printed: str) -> None:
    """With the defaults of the dataclass, unless the command has others."""
    app = typer.Typer()
    app.command()(show)
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, done.stdout.strip()) == (0, printed)


def test_a_field_without_a_default_is_a_required_option() -> None:
    """And typer sees single options: no trace of the dataclass is left in the signature."""
    app = typer.Typer()
    app.command()(show)
    assert CliRunner().invoke(app, ["here"]).exit_code == 2
    assert list(inspect.signature(show).parameters) == ["what", "count", "name", "radius_m"]


# -- examples --------------------------------------------------------------------------------------------------------


def test_an_example_that_fills_more_than_a_line_can_be_copied() -> None:
    """A wrapped line would be two commands for a shell."""
    command = "whimbrel publish ward/3 --property 'a=it is long' --expiry 90s --qos 1 '{\"a b\": 1}' --retain"
    text = f"Publish.\n\nExample: {command}"
    said, example = with_whole_examples(text).split("\n\n")
    assert said == "Publish."
    assert example == (
        "\b\nExample: whimbrel publish ward/3 --property 'a=it is long' --expiry 90s \\\n"
        "    --qos 1 '{\"a b\": 1}' --retain"
    )
    words = shlex.split(example.removeprefix("\b\nExample: ").replace("\\\n", ""))
    assert words == shlex.split(command)


def test_a_line_of_a_list_of_commands_ends_at_a_comma() -> None:
    """Rather than in the middle of a thought."""
    assert in_short("Print the users.") is None
    text = "Print the clients that the broker knows, connected or away, and how much is held for each of them."
    assert in_short(text) == "Print the clients that the broker knows, connected or away."
    assert in_short("Word " * 40) is None
