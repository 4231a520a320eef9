"""``whimbrel filter``: explain a filter, test it on attributes, check test vectors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text as Styled
from rich.tree import Tree as Drawing

from whimbrel.cli.options.lines import name_of, raw_lines
from whimbrel.language import ast
from whimbrel.language.check import value_kind
from whimbrel.language.filters import Filter
from whimbrel.language.needs import Need, needs
from whimbrel.language.printer import print_filter
from whimbrel.language.trace import Trace, trace, verdict_word
from whimbrel.language.vectors import BACKENDS, Backend, Failure, failures, read_vectors
from whimbrel.model.attributes import Attributes
from whimbrel.model.codecs import from_json
from whimbrel.model.typed import to_typed

__all__ = ["app"]

_COLOURS = {True: "green", False: "red", None: "yellow"}


def _index(cases: Sequence[tuple[ast.Predicate, Attributes]]) -> Iterable[bool | None]:
    from whimbrel.match.verdicts import verdicts  # numba takes a second to load

    return verdicts(cases)


_BACKENDS: Mapping[str, Backend] = {**BACKENDS, "index": _index}

app = typer.Typer(
    help="Work with filters in the Elvin 4 subscription language.", no_args_is_help=True, rich_markup_mode=None
)

Expression = Annotated[
    str, typer.Argument(metavar="EXPR", help="A filter, e.g. \"temperature > 38.5 && ward == 'ICU'\".")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@app.command()
def topic(
    expr: Expression,
    topic_filter: Annotated[str, typer.Argument(metavar="TOPIC_FILTER", help="What to subscribe to, e.g. 'ward/#'.")],
) -> None:
    """Print the topic filter that expresses EXPR in MQTT 3.1.1, which has no user properties: $filter/…/TOPIC_FILTER.

    Example: mosquitto_sub -t "$(whimbrel filter topic 'value > 20' 'lab/#')"
    """
    from whimbrel.client.interest import Interest  # the wire takes a moment to load
    from whimbrel.mqtt.packets import V311

    typer.echo(Interest(topic_filter=topic_filter, filter_text=expr).wire_filter(V311))


@app.command()
def explain(expr: Expression, *, as_json: AsJson = False) -> None:
    """Show how EXPR is read: its tree with types, its normal form, and the attributes that it needs.

    Example: whimbrel filter explain '!(battery > 20) || charging == true'
    """
    wanted = Filter(expr)
    if as_json:
        shown = {
            "filter": expr,
            "tree": _tree_as_json(wanted.tree),
            "normal_form": wanted.normal(),
            "needs": [_need_as_json(need) for need in needs(wanted.tree)],
        }
        typer.echo(json.dumps(shown, ensure_ascii=False))
        return
    console = _console()
    console.print(_draw(wanted.tree))
    console.print("\nNormal form:")
    console.print(Styled("  " + wanted.normal()))
    console.print("\nNeeds of a notification:")
    for need in needs(wanted.tree):
        importance = "required" if need.is_required else "optional"
        console.print(Styled(f"  {need.name}: {importance}; {_type_words(need)}"))


@app.command()
def test(
    expr: Expression,
    *,
    attributes: Annotated[
        str,
        typer.Option(
            "--attributes",
            "-a",
            metavar="JSON",
            help='A JSON object, e.g. \'{"temperature": 39.2, "ward": "ICU"}\'; nested objects are joined with a dot.',
        ),
    ],
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 unless the verdict is true, for use in scripts.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the verdict of EXPR on the attributes (true, false or undefined) and the reason.

    Only true delivers; undefined means that an attribute of the filter is missing or of another type.

    Example: whimbrel filter test 'temperature > 38.5' -a '{"temperature": 39.2}'
    """
    wanted = Filter(expr)
    event = from_json(attributes)
    shown = trace(wanted.tree, event)
    if as_json:
        typer.echo(
            json.dumps({"verdict": verdict_word(shown.verdict), "why": _trace_as_json(shown)}, ensure_ascii=False)
        )
    else:
        _console().print(_drawn_trace(shown))
    if exit_code and shown.verdict is not True:
        raise typer.Exit(1)


@app.command()
def check(
    vectors: Annotated[Path, typer.Argument(metavar="VECTORS.jsonl", help="The vectors; - reads standard input.")],
    *,
    backend: Annotated[
        str, typer.Option("--backend", metavar="NAME", help=f"Which backend decides: {', '.join(_BACKENDS)}.")
    ] = "python",
    as_json: AsJson = False,
) -> None:
    """Check a backend of filters against test vectors; exit 1 if any fails.

    One vector per line: {"expr": "a > 5", "attrs": {"a": {"t": "int32", "v": 7}}, "expect": "true"}, where t is int32,
    int64, real64, string or opaque (v in hexadecimal) and expect is true, false, undefined or error.

    Example: whimbrel filter check alarms.jsonl
    """
    if backend not in _BACKENDS:
        raise typer.BadParameter(f"found {backend!r}, allowed is {', '.join(_BACKENDS)}", param_hint="--backend")
    found = list(read_vectors(raw_lines(vectors, doing="Reading vectors"), source=name_of(vectors)))
    failed = failures(found, _BACKENDS[backend])
    passed = len(found) - len(failed)
    if as_json:
        rows = [asdict(failure) for failure in failed]
        typer.echo(json.dumps({"passed": passed, "failed": len(failed), "failures": rows}, ensure_ascii=False))
    else:
        for failure in failed:
            typer.echo(_failure_line(failure))
        typer.echo(f"{passed} passed, {len(failed)} failed")
    if failed:
        raise typer.Exit(1)


# -- output ----------------------------------------------------------------------------------------------------------


def _console() -> Console:
    # No markup: a filter may contain [brackets]. Soft wrap: a script that uses grep must find whole lines.
    return Console(markup=False, highlight=False, emoji=False, soft_wrap=True)


def _failure_line(failure: Failure) -> str:
    return f"line {failure.line}: {failure.expr}\n  expected {failure.expect}, got {failure.got}"


def _label(node: ast.Node) -> str:
    kind = type(node).__name__
    match node:
        case ast.Name(name):
            return f"{kind} {name}"
        case ast.Literal():
            return f"{kind} {print_filter(node)}"
        case ast.Compare(op, _, _) | ast.Binary(op, _, _) | ast.Unary(op, _):
            return f"{kind} {op}"
        case ast.Test(function, _) | ast.Text(function, _):
            return f"{kind} {function}"
        case ast.Pattern(function, _, patterns):
            return f"{kind} {function} {', '.join(map(repr, patterns))}"
        case _:
            return kind


def _type_word(node: ast.Node) -> str:
    return value_kind(node).value if isinstance(node, ast.Value) else "true, false or undefined"


def _draw(node: ast.Node) -> Drawing:
    label = Styled(_label(node))
    if isinstance(node, ast.Value):
        label.append(f"  ({_type_word(node)})", style="dim")
    drawing = Drawing(label)
    for child in ast.children(node):
        drawing.add(_draw(child))
    return drawing


def _tree_as_json(node: ast.Node) -> dict[str, object]:
    return {"node": _label(node), "type": _type_word(node), "children": [_tree_as_json(c) for c in ast.children(node)]}


def _type_words(need: Need) -> str:
    words = ", ".join(kind.word for kind in sorted(need.types))
    return "of any type" if len(need.types) == 5 else f"as {words}" if words else "of no type it could be true with"


def _need_as_json(need: Need) -> dict[str, object]:
    return {"name": need.name, "required": need.is_required, "types": [kind.word for kind in sorted(need.types)]}


def _drawn_trace(part: Trace) -> Drawing:
    label = Styled(verdict_word(part.verdict), style=_COLOURS[part.verdict])
    label.append(f"  {part.part}", style="default")
    if part.seen:
        values = ", ".join(f"{name} is {'missing' if value is None else repr(value)}" for name, value in part.seen)
        label.append(f"  ({values})", style="dim")
    drawing = Drawing(label)
    for child in part.parts:
        drawing.add(_drawn_trace(child))
    return drawing


def _trace_as_json(part: Trace) -> dict[str, object]:
    present = to_typed({name: value for name, value in part.seen if value is not None})
    return {
        "part": part.part,
        "verdict": verdict_word(part.verdict),
        "seen": {name: present.get(name) for name, _ in part.seen},
        "parts": [_trace_as_json(child) for child in part.parts],
    }
