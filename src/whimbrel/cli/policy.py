"""``whimbrel policy``: check, explain and test policies without a broker; put, list, show and remove a broker's."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from whimbrel.cli.options.connection import answer_of, run
from whimbrel.cli.options.groups import with_option_groups
from whimbrel.cli.options.lines import name_of
from whimbrel.cli.session.connection import AskingConnection
from whimbrel.errors import InvalidValueError, Phrase, PolicyError
from whimbrel.language.policies.limits import DEFAULT_POLICY_LIMITS
from whimbrel.language.policies.policy import Policy
from whimbrel.language.policies.reading.tokens import MAX_TEXT
from whimbrel.language.policies.warnings import warnings_of
from whimbrel.model.attributes import Attributes
from whimbrel.model.clock import parse_time
from whimbrel.model.codecs import attributes_of, from_json, merge_attributes
from whimbrel.model.device import DeviceState
from whimbrel.model.notification import MAX_BODY_BYTES, Notification
from whimbrel.model.outcome import Outcome
from whimbrel.model.typed import to_typed
from whimbrel.shape.agents import admit
from whimbrel.shape.decision import Decision, decide, finish
from whimbrel.shape.faults import Fault, TransformError
from whimbrel.shape.transforms import Work, perform
from whimbrel.shape.variables import AutomaticVariables

if TYPE_CHECKING:  # other commands need not load asyncio and MQTT
    from whimbrel.client import Policies

__all__ = ["app"]

_T = TypeVar("_T")

app = typer.Typer(help="Work with policies over the state of devices.", no_args_is_help=True, rich_markup_mode=None)

_MAX_TEXT_BYTES = 4 * MAX_TEXT  # a character has at most four bytes
_SHOWN_BYTES = 2_000

PolicyFile = Annotated[Path, typer.Argument(metavar="POLICY", help="The file of a policy; - reads standard input.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@app.command()
def check(
    policies: Annotated[
        list[Path], typer.Argument(metavar="POLICY...", help="Files of policies; - is standard input.")
    ],
) -> None:
    """Check that each POLICY is valid and within the cost limit; exit 1 if one is not.

    An error is printed with a stable code, its position, and carets under it.

    Example: whimbrel policy check icu.policy
    """
    failed = 0
    for path in policies:
        try:
            bound = _policy(path).bound
        except PolicyError as error:
            failed += 1
            typer.echo(f"{name_of(path)}: {error.pointed()}")
        else:
            typer.echo(f"{name_of(path)}: at most {bound.steps} steps, {bound.bytes} bytes, {bound.pixels} pixels")
    if failed:
        raise typer.Exit(1)


@app.command()
def explain(policy: PolicyFile, *, as_json: AsJson = False) -> None:
    """Show the variables that POLICY reads and sets, the attributes it reads, its highest cost, and probable mistakes.

    Example: whimbrel policy explain icu.policy
    """
    found = _policy(policy)
    limits = DEFAULT_POLICY_LIMITS
    costs = {what: (getattr(found.bound, what), getattr(limits, what)) for what in ("steps", "bytes", "pixels")}
    lists = {
        "attributes read": sorted(found.attributes),
        "variables read": sorted(found.reads),
        "variables set": sorted(found.writes),
        "functions": [function.name for function in found.program.functions],
    }
    warnings = warnings_of(found.text)
    form = "as the paper prints it" if found.program.is_printed else "ours"
    if as_json:
        shown = {"form": form, "cost": {what: {"most": a, "allowed": b} for what, (a, b) in costs.items()}, **lists}
        told = {"needs images": found.needs_images, "warnings": [each._asdict() for each in warnings]}
        typer.echo(json.dumps({**shown, **told}, ensure_ascii=False))
        return
    typer.echo(f"form: {form}")
    for what, (most, allowed) in costs.items():
        typer.echo(f"{what}: at most {most} of {allowed}")
    for what, names in lists.items():
        typer.echo(f"{what}: {', '.join(names) or 'none'}")
    typer.echo(f"image library: {'needed' if found.needs_images else 'not needed'}")
    for each in warnings:
        typer.echo(f"warning at line {each.line}, column {each.column}: {each.reason}")


Name = Annotated[str, typer.Argument(metavar="NAME", help="The policy's name.")]


@app.command()
@with_option_groups()
def put(name: Name, policy: PolicyFile, *, connection: AskingConnection) -> None:
    """Put POLICY into a broker under NAME, or a new version of it.

    The policy is first checked here. Devices and subscriptions choose it by name. Exits 1 if the broker cannot be
    reached or refuses.

    Example: whimbrel policy put icu icu.policy
    """
    text = _policy(policy).text
    _do(connection, lambda policies: policies.put(name, text), is_owner=True)
    typer.echo(f"put {name}")


@app.command()
@with_option_groups()
def remove(name: Name, *, connection: AskingConnection) -> None:
    """Remove the policy NAME from a broker; devices that chose it get everything unchanged.

    Example: whimbrel policy remove icu
    """
    _do(connection, lambda policies: policies.remove(name), is_owner=True)
    typer.echo(f"removed {name}")


@app.command("list")
@with_option_groups()
def list_policies(*, connection: AskingConnection, as_json: AsJson = False) -> None:
    """List the policies of a broker: version, owner, and how many devices have chosen each.

    Example: whimbrel policy list
    """
    found = _do(connection, lambda policies: policies.list())
    if as_json:
        typer.echo(json.dumps([each._asdict() for each in found], ensure_ascii=False))
        return
    for each in found:
        owner = "without owner" if each.owner is None else f"of {each.owner}"
        suspended = ", suspended: it failed too often" if each.is_suspended else ""
        typer.echo(f"{each.name}: version {each.version}, {owner}, {each.devices} devices{suspended}")
    if not found:
        typer.echo("no policies; `whimbrel policy put NAME FILE` puts one")


@app.command()
@with_option_groups()
def show(name: Name, *, connection: AskingConnection) -> None:
    """Print the text of the policy NAME of a broker.

    Example: whimbrel policy show icu
    """
    found = _do(connection, lambda policies: policies.show(name))
    typer.echo(found.text, nl=not (found.text or "").endswith("\n"))


def _do(connection: AskingConnection, work: Callable[[Policies], Awaitable[_T]], *, is_owner: bool = False) -> _T:
    """Connect, run *work* (requests about policies) with the broker, and return its answer."""
    answers: list[_T] = []

    async def ask() -> None:
        async with connection.client_that_owns() if is_owner else connection.client_of_its_own() as client:
            answers.append(await answer_of(work(client.policies)))

    run(ask())
    return answers[0]


@app.command()
def test(
    policy: PolicyFile,
    *,
    attributes: Annotated[
        str, typer.Option("--attributes", "-a", metavar="JSON", help="Attributes of the publication, as a JSON object.")
    ] = "{}",
    body: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The body, such as an image; else it is what --attributes says."),
    ] = None,
    subject: Annotated[str, typer.Option(metavar="TOPIC", help="The topic it was published to.")] = "test",
    report: Annotated[
        str, typer.Option(metavar="JSON", help='What the device reported, e.g. \'{"battery": 0.2, "received": 4}\'.')
    ] = "{}",
    sent: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="How many notifications were sent to it before that report.")
    ] = None,
    state: Annotated[str, typer.Option(metavar="JSON", help="The manual variables that earlier runs have set.")] = "{}",
    now: Annotated[str | None, typer.Option(metavar="TIME", help="The moment, in ISO 8601; else the present.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write the body that is sent.")] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if it is withheld, for use in scripts.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run POLICY once on a notification and the state of a device; print the result and the reason.

    Example: whimbrel policy test icu.policy -a '{"pulse": 72}' --report '{"battery": 0.5}'
    """
    found = _policy(policy)
    at = time.time_ns() // 1_000 if now is None else parse_time(now)
    automatic = AutomaticVariables()
    automatic.take(DeviceState.from_report(report, device="test", now=at, sent=sent))
    arrived = _notification(attributes, body, subject, at)
    manual = from_json(state)
    made = decide(found, arrived, automatic.values, manual, now=at)
    if made.work is not None:
        made = finish(made, _perform(made.work))
    if out is not None and made.outcome is Outcome.DELIVERED:
        out.write_bytes(made.body)
    typer.echo(json.dumps(_as_json(made, arrived), ensure_ascii=False) if as_json else _as_text(made, arrived))
    if exit_code and made.outcome is not Outcome.DELIVERED:
        raise typer.Exit(1)


# -- input --------------------------------------------------------------------------------------------------------


def _policy(path: Path) -> Policy:
    if str(path) == "-":
        data = sys.stdin.buffer.read(_MAX_TEXT_BYTES + 1)
    else:
        with path.open("rb") as stream:
            data = stream.read(_MAX_TEXT_BYTES + 1)
    try:
        return admit(data.decode())
    except UnicodeDecodeError as error:
        raise InvalidValueError(
            name_of(path), Phrase(f"no UTF-8 from byte {error.start} on"), "text in UTF-8"
        ) from None


def _notification(attributes: str, body: Path | None, subject: str, at: int) -> Notification:
    said = from_json(attributes)
    data = attributes.encode()
    if body is not None:
        with body.open("rb") as stream:
            data = stream.read(MAX_BODY_BYTES + 1)
        said = merge_attributes(attributes_of(data), said)
    return Notification(node="test", seq=0, published_at=at, subject=subject, attributes=said, body=data)


def _perform(work: Work) -> bytes | Fault:
    try:
        return perform(work, DEFAULT_POLICY_LIMITS)
    except TransformError as error:
        return error.fault


# -- output --------------------------------------------------------------------------------------------------------


def _as_json(made: Decision, arrived: Notification) -> dict[str, object]:
    is_sent = made.outcome is Outcome.DELIVERED
    return {
        "outcome": made.outcome.value,
        "reason": None if made.fault is None else made.fault.value,
        "body_bytes": len(made.body) if is_sent else None,
        "published_bytes": len(arrived.body),
        "attributes": to_typed(arrived.attributes if made.attributes is None else made.attributes) if is_sent else None,
        "read": to_typed(made.read),
        "set": to_typed(made.changed),
        "removed": list(made.removed),
        "cost": {"steps": made.cost.steps, "bytes": made.cost.bytes, "pixels": made.cost.pixels},
    }


def _as_text(made: Decision, arrived: Notification) -> str:
    lines = [made.outcome.value + ("" if made.fault is None else f": {made.fault.value}")]
    if made.outcome is Outcome.DELIVERED:
        size = f"{len(made.body)} of {len(arrived.body)} bytes"
        lines.append(f"  body: {'as published' if made.is_original else _preview(made.body)}  ({size})")
    for what, values in (("read", made.read), ("set", made.changed)):
        if values:
            lines.append(f"  {what}: {_join(values)}")
    if made.removed:
        lines.append(f"  removed: {', '.join(made.removed)}")
    costs = ((made.cost.steps, "steps"), (made.cost.bytes, "bytes"), (made.cost.pixels, "pixels"))
    lines.append("  cost: " + ", ".join(f"{count} {what}" for count, what in costs if count or what == "steps"))
    return "\n".join(lines)


def _join(values: Attributes) -> str:
    shown = {name: int(value) if isinstance(value, int) else value for name, value in values.items()}
    return ", ".join(f"{name} = {value!r}" for name, value in shown.items())


def _preview(body: bytes) -> str:
    text = body[:_SHOWN_BYTES].decode(errors="replace")
    return text if len(body) <= _SHOWN_BYTES and text.isprintable() else "binary"
