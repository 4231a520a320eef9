"""Makes the generated reference pages and sections anew; ``--check`` names the stale ones and exits 1.

Rule: what the code knows is written once, in the code; these pages only show it.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import inspect
import json
import os
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer.main

from whimbrel.broker.limits.figures import figures_of
from whimbrel.broker.settings.config_files import reference
from whimbrel.broker.shell.metrics import FIGURES
from whimbrel.cli.main import app
from whimbrel.language.codes import ErrorCode
from whimbrel.language.functions import FUNCTIONS
from whimbrel.language.parser import MAX_DEPTH, MAX_HEIGHT, MAX_TEXT
from whimbrel.language.pattern_cost import ADMITTED, MAX_CONSTANT, MAX_STEPS
from whimbrel.language.patterns import MAX_PATTERN_CHARS
from whimbrel.language.policies import DEFAULT_POLICY_LIMITS, PolicyCode
from whimbrel.language.policies.operations import AUTOMATIC, OPERATIONS
from whimbrel.language.policies.reading.parser import MAX_NESTING
from whimbrel.language.policies.reading.tokens import MAX_TEXT as MAX_POLICY_TEXT
from whimbrel.model.attributes import DEFAULT_LIMITS, Limits
from whimbrel.model.tables import as_markdown
from whimbrel.mqtt.codes import PACKETS_OF, PacketType, ReasonCode, connect_return_code
from whimbrel.mqtt.properties import KINDS, WILL, Property
from whimbrel.pipeline import TABLES_MADE
from whimbrel.rendezvous.controller.parameters import Parameters
from whimbrel.rendezvous.device.states import PUBLISHER, SUBSCRIBER, diagram
from whimbrel.rendezvous.messages import FromDevice
from whimbrel.rendezvous.refusals import Refusal
from whimbrel.rendezvous.wire import MESSAGES

ROOT = Path(__file__).resolve().parents[1]
MADE_BY = "<!-- made by tools/make_docs.py: change the code, then run `make docs` -->"
LIMIT_WORDS: Mapping[str, str] = {
    "max_names": "attributes of a notification",
    "max_depth": "levels of nested objects in a body",
    "max_bytes": "bytes of a JSON or CBOR body, and of all names and values together (a number counts 8)",
    "max_name_bytes": "bytes of an attribute's name in UTF-8, counted with its path",
}
MEASURED: Mapping[str, str] = {
    "parse U": "read a filter (U)",
    "parse B": "read a filter (B)",
    "ready U": "read it and prepare it for evaluation (U)",
    "ready B": "read it and prepare it for evaluation (B)",
    "evaluate U": "evaluate it on one event (U)",
    "evaluate B": "evaluate it on one event (B)",
}

SENT: Mapping[ReasonCode, tuple[str, str]] = {
    ReasonCode.SUCCESS: ("CONNACK PUBACK PUBREC PUBREL PUBCOMP SUBACK UNSUBACK", "it was accepted; in SUBACK: QoS 0"),
    ReasonCode.GRANTED_QOS_1: ("SUBACK", "accepted, at QoS 1"),
    ReasonCode.GRANTED_QOS_2: ("SUBACK", "accepted, at QoS 2"),
    ReasonCode.NO_MATCHING_SUBSCRIBERS: ("PUBACK PUBREC", "accepted, and nobody wants it now"),
    ReasonCode.NO_SUBSCRIPTION_EXISTED: ("UNSUBACK", "there was no such subscription"),
    ReasonCode.UNSPECIFIED_ERROR: ("SUBACK", "the rights file does not let the client subscribe to this"),
    ReasonCode.MALFORMED_PACKET: ("CONNACK DISCONNECT", "the bytes are not a packet; CONNACK: a CONNECT of version 5"),
    ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR: ("PUBACK PUBREC", "the body is longer than `limits.message_bytes`"),
    ReasonCode.PROTOCOL_ERROR: (
        "CONNACK DISCONNECT",
        "a packet that may not come here, or not with these values; CONNACK: a CONNECT of version 5 with such values",
    ),
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: ("CONNACK", "too long, empty where one is needed, or not for this user"),
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: ("CONNACK", "wrong, or missing where the users file asks for them"),
    ReasonCode.NOT_AUTHORIZED: (
        "CONNACK PUBACK PUBREC",
        "the topic, or the will's, may not be published to, or is the broker's own",
    ),
    ReasonCode.SERVER_UNAVAILABLE: ("CONNACK", "the broker starts or stops, or cannot write to its disk"),
    ReasonCode.SERVER_BUSY: ("CONNACK", "more connections than `limits.connections`"),
    ReasonCode.SERVER_SHUTTING_DOWN: ("DISCONNECT", "the broker stops"),
    ReasonCode.BAD_AUTHENTICATION_METHOD: ("CONNACK", "CONNECT names an authentication method; none is offered"),
    ReasonCode.KEEP_ALIVE_TIMEOUT: ("DISCONNECT", "nothing was heard for one and a half keep alives"),
    ReasonCode.SESSION_TAKEN_OVER: ("DISCONNECT", "another connection came with the same client identifier"),
    ReasonCode.TOPIC_FILTER_INVALID: (
        "SUBACK UNSUBACK",
        "no topic filter, no content filter, or an option that is not allowed; the reason string says which and where",
    ),
    ReasonCode.TOPIC_NAME_INVALID: (
        "CONNACK PUBACK PUBREC DISCONNECT",
        "longer or deeper than allowed, or with a control character; with a wildcard, the connection ends",
    ),
    ReasonCode.PACKET_IDENTIFIER_NOT_FOUND: ("PUBREL PUBCOMP", "nothing is on its way under this identifier"),
    ReasonCode.RECEIVE_MAXIMUM_EXCEEDED: ("DISCONNECT", "more publications without an answer than were allowed"),
    ReasonCode.TOPIC_ALIAS_INVALID: ("DISCONNECT", "an alias of 0, or higher than was allowed"),
    ReasonCode.PACKET_TOO_LARGE: (
        "CONNACK DISCONNECT",
        "longer than `limits.packet_bytes`; or an answer is longer than the client takes",
    ),
    ReasonCode.QUOTA_EXCEEDED: (
        "PUBACK PUBREC SUBACK DISCONNECT",
        "a limit is reached or the disk is full; DISCONNECT: too much waits to be acknowledged by the client",
    ),
    ReasonCode.ADMINISTRATIVE_ACTION: ("DISCONNECT", "an operator released the session"),
    ReasonCode.PAYLOAD_FORMAT_INVALID: (
        "CONNACK PUBACK PUBREC",
        "a report, a request or a key that cannot be read; the reason string says why",
    ),
    ReasonCode.RETAIN_NOT_SUPPORTED: (
        "CONNACK DISCONNECT",
        "the will, or a publication, is to be retained, and `mqtt.retain_available` is false",
    ),
    ReasonCode.QOS_NOT_SUPPORTED: (
        "CONNACK DISCONNECT",
        "the will's QoS, or a publication's, is above `mqtt.maximum_qos`",
    ),
}
"""What the broker sends, in which packets, and when; what is not here it never says."""

DONE: Mapping[Property, str] = {
    Property.PAYLOAD_FORMAT_INDICATOR: "passed on; the body is not checked against it",
    Property.MESSAGE_EXPIRY_INTERVAL: "obeyed; passed on less the time it waited",
    Property.CONTENT_TYPE: "passed on; says whether the body is JSON or CBOR",
    Property.RESPONSE_TOPIC: "passed on",
    Property.CORRELATION_DATA: "passed on",
    Property.SUBSCRIPTION_IDENTIFIER: "kept with the subscription and sent with all it matches",
    Property.SESSION_EXPIRY_INTERVAL: "obeyed, at most `mqtt.session_expiry_s`; CONNACK says so where it differs",
    Property.ASSIGNED_CLIENT_IDENTIFIER: "sent to a client that gave none",
    Property.SERVER_KEEP_ALIVE: "sent where it differs from the client's value",
    Property.AUTHENTICATION_METHOD: "refused",
    Property.AUTHENTICATION_DATA: "refused",
    Property.REQUEST_PROBLEM_INFORMATION: "obeyed: at 0 a reason string stands in CONNACK and DISCONNECT alone",
    Property.WILL_DELAY_INTERVAL: "obeyed, at most until the session ends",
    Property.REQUEST_RESPONSE_INFORMATION: "read and ignored",
    Property.RESPONSE_INFORMATION: "never sent",
    Property.SERVER_REFERENCE: "never sent",
    Property.REASON_STRING: "sent with refusals; a client's is ignored",
    Property.RECEIVE_MAXIMUM: "obeyed; `limits.receive_maximum` is sent",
    Property.TOPIC_ALIAS_MAXIMUM: "obeyed, at most 32; `limits.topic_alias_maximum` is sent",
    Property.TOPIC_ALIAS: "both ways",
    Property.MAXIMUM_QOS: "sent where `mqtt.maximum_qos` is below 2",
    Property.RETAIN_AVAILABLE: "sent where `mqtt.retain_available` is false",
    Property.USER_PROPERTY: "PUBLISH, will: passed on, and attributes; `whimbrel.…`: options; else ignored",
    Property.MAXIMUM_PACKET_SIZE: "obeyed; `limits.packet_bytes` is sent",
    Property.WILDCARD_SUBSCRIPTION_AVAILABLE: "never sent: available",
    Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE: "never sent: available",
    Property.SHARED_SUBSCRIPTION_AVAILABLE: "never sent: available",
}
"""What the broker does with each property."""


# -- metrics ---------------------------------------------------------------------------------------------------------


def metrics_page() -> str:
    """Return the reference page of everything that a broker counts."""
    rows = ["| metric | `$SYS/broker/…` | `whimbrel status --json` | what it counts |", "|---|---|---|---|"]
    for kind in FIGURES:
        for name, figure in figures_of(kind).items():
            place = f"per_second.{name}" if figure.has_rate else figure.place
            topic, place = figure.topic and f"`{figure.topic}`", place and f"`.{place}`"
            rows.append(f"| `whimbrel_{name}{'_total' * figure.is_counter}` | {topic} | {place} | {figure.about} |")
    head = (
        f"# Metrics\n\n{MADE_BY}\n\n"
        "Each number that a broker counts is shown in up to three places: at `/metrics` of `listen.http_port` for "
        "Prometheus, as a retained message below `$SYS/broker/` every `observe.sys_interval_s`, and by "
        "`whimbrel status`.\n"
        "Names that end in `_total` count since the start of the broker; all others say what there is now.\n"
        "Two metrics with one topic are added up there. `per_second` is the growth over the last minute.\n\n"
        "[Watch a broker](../how-to/watch-a-broker.md) says which of them to set an alarm on; "
        "[$SYS](mqtt.md#sys) lists the topics that have no number."
    )
    return head + "\n\n" + "\n".join(rows) + "\n"


# -- the command line ------------------------------------------------------------------------------------------------


def cli_page() -> str:
    """Return the reference page of every command."""
    os.environ["COLUMNS"] = "100"  # the help must not depend on who makes it in which terminal
    parts = [
        "# The command line",
        "",
        MADE_BY,
        "",
        "Exit codes: 0 is success, 1 an honest no (a check that failed), 2 a bad input, 130 when interrupted.",
        "Messages go to standard error, answers to standard output.",
        "",
    ]
    for name, text in help_texts():
        parts += [f"## {name}", "", "```text", text, "```", ""]
    return "\n".join(parts)


def help_texts() -> Iterator[tuple[str, str]]:
    """Yield every command, groups before their members, with what its ``--help`` prints."""
    yield from _help_texts(typer.main.get_command(app), "whimbrel", None)


def _help_texts(command: Any, name: str, parent: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 # typer's own click
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    yield context.command_path, command.get_help(context).strip()
    for child, subcommand in getattr(command, "commands", {}).items():
        yield from _help_texts(subcommand, child, context)


# -- sections of the language page -----------------------------------------------------------------------------------


def functions_table() -> str:
    """Return the functions, what they take and what they answer."""
    rows = ((f"`{each.usage}`", _count(each.least, each.most), each.answers) for each in FUNCTIONS.values())
    return _table(("function", "arguments", "answers"), rows)


def _count(least: int, most: int | None) -> str:
    return f"{least} or more" if most is None else str(least) if least == most else f"{least} to {most}"


def codes_table() -> str:
    """Return the stable error codes."""
    return _table(("code", "name", "what it means"), ((str(code.value), code.summary, code.help) for code in ErrorCode))


def operations_table() -> str:
    """Return the operations of policies."""
    return _table(("operation", "what it is or does"), ((f"`{each.usage}`", each.does) for each in OPERATIONS.values()))


def automatic_table() -> str:
    """Return the automatic variables that every deployment has."""
    return _table(("variable", "is"), ((f"`device.{name}`", text) for name, text in AUTOMATIC.items()))


def policy_codes_table() -> str:
    """Return the stable error codes of policies."""
    rows = ((str(code.value), code.summary, code.help) for code in PolicyCode)
    return _table(("code", "name", "what it means"), rows)


def policy_limits_table() -> str:
    """Return what bounds policies."""
    limits = DEFAULT_POLICY_LIMITS
    rows = (
        ("steps of one run", limits.steps),
        ("bytes that the transforms of one run read", limits.bytes),
        ("pixels that the transforms of one run read", limits.pixels),
        ("bytes of one body that a transform reads", limits.body_bytes),
        ("pixels of one image that a transform reads", limits.image_pixels),
        ("manual variables of one device and policy", limits.variables),
        ("bytes of their names and values", limits.variable_bytes),
        ("characters of a policy", MAX_POLICY_TEXT),
        ("levels of blocks and expressions", MAX_NESTING),
    )
    return _table(("what", "at most"), ((what, f"{most:,}") for what, most in rows))


def limits_table() -> str:
    """Return everything that is bounded."""
    code = {each: str(each.value) for each in (ErrorCode.LENGTH, ErrorCode.NESTING, ErrorCode.REGEX_COMPLEXITY)}
    refused, too_complex = "the notification is refused", code[ErrorCode.REGEX_COMPLEXITY]
    rows = [
        ("characters of one filter", f"{MAX_TEXT:,}", code[ErrorCode.LENGTH]),
        (
            "levels of a filter's tree, names and constants included; a chain of && is one",
            f"{MAX_HEIGHT:,}",
            code[ErrorCode.NESTING],
        ),
        ("levels of a filter's text, parentheses included", f"{MAX_DEPTH:,}", code[ErrorCode.NESTING]),
        (
            "characters of one regex, or of the regex made from a wildcard",
            f"{MAX_PATTERN_CHARS:,}",
            too_complex,
        ),
        ("compiled instructions of one regex or wildcard", f"{ADMITTED.instructions:,}", too_complex),
        ("places in one of them where a match can be; `x{700}` has 700", f"{ADMITTED.positions:,}", too_complex),
        ("regexes and wildcards in one filter", f"{ADMITTED.patterns:,}", too_complex),
        ("compiled instructions of all of them together", f"{ADMITTED.total_instructions:,}", too_complex),
        (
            "steps: these instructions times the bytes (UTF-8) of the string that a regex or wildcard is run on",
            f"{MAX_STEPS:,}",
            "the regex or wildcard is undefined",
        ),
        (
            "bytes of a constant string that a regex or wildcard is run on",
            f"{MAX_CONSTANT:,}",
            "the regex or wildcard is undefined",
        ),
    ]
    rows += [
        (LIMIT_WORDS[field.name], f"{getattr(DEFAULT_LIMITS, field.name):,}", refused)
        for field in dataclasses.fields(Limits)
    ]
    return _table(("what", "at most", "beyond it"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Escape what Markdown would swallow; in code only the bar ends a cell."""
    return re.sub(r"\|" if text.startswith("`") else r"[\\*|<\[]", r"\\\g<0>", text)


# -- the broker ------------------------------------------------------------------------------------------------------


def configuration_page() -> str:
    """Return the reference page of every setting."""
    parts = [
        "# Configuration",
        "",
        MADE_BY,
        "",
        "`whimbrel serve --config FILE` reads a TOML file with these sections and settings; all have defaults.",
        "`whimbrel serve --print-config` prints such a file, complete and with comments.",
        "Options of the [command line](cli.md#whimbrel-serve) go before the file.",
        "A name that is not listed here is an error, and so is a value that is not allowed.",
        "The files of users and rights are described in [Rights](rights.md).",
        "",
        reference(),
    ]
    return "\n".join(parts)


def reason_codes_table() -> str:
    """Return the reason codes that the broker sends, and when."""
    rows = []
    for code, (packets, when) in SENT.items():
        names = packets.split()
        wrong = [name for name in names if PacketType[name] not in PACKETS_OF[code]]
        if wrong:
            raise SystemExit(f"SENT: {code.name} may not stand in {', '.join(wrong)}")
        # 3.1.1 answers a CONNECT that is malformed with no CONNACK at all [MQTT-3.1.4-1].
        is_refusal = code.is_error and "CONNACK" in names and code is not ReasonCode.MALFORMED_PACKET
        old = str(connect_return_code(code)) if is_refusal else "0x80" if code.is_error and "SUBACK" in names else "–"
        rows.append((f"0x{code:02X}", code.title, ", ".join(names), old, when))
    return _table(("code", "name", "in", "3.1.1", "when"), rows)


def properties_table() -> str:
    """Return every property of MQTT 5 and what the broker does with it."""
    rows = []
    for which, kind in KINDS.items():
        name = which.name.replace("_", " ").lower()
        rows.append((str(int(which)), name, kind.wire.value, _places(kind.places), DONE[which]))
    return _table(("no.", "property", "type", "may stand in", "what the broker does with it"), rows)


def _places(places: frozenset[int]) -> str:
    if len(places) > 10:
        return "all that have properties"
    packets = [PacketType(place).name for place in sorted(places - {WILL})]
    return ", ".join([*packets, "will"] if WILL in places else packets)


# -- measured --------------------------------------------------------------------------------------------------------


def measured() -> str:
    """Return the ratios that the last full benchmark kept, with what they were measured on."""
    record = json.loads((ROOT / "bench" / "results" / "language.json").read_text(encoding="utf-8"))
    peers = [name for name in record["versions"] if name != "whimbrel"]
    comparisons = {each["title"]: each for each in record["comparisons"]}
    rows = []
    for title, words in MEASURED.items():
        ours, ratios = comparisons[title]["engines"]["whimbrel"], comparisons[title]["ratios"]
        rows.append((words, f"{ours['us_per_item']:.3g} µs", *(_times(ratios[peer]) for peer in peers)))
    machine = record["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, {machine['python']}"
    versions = ", ".join(f"{name} {record['versions'][name]}" for name in peers)
    source = f"`{machine['command']}` at {machine['commit']} on {where}; {versions}."
    return "\n".join([_table(("", "ours", *(f"than {peer}" for peer in peers)), rows), "", source])


def matched() -> str:
    """Return what the last full benchmark of the matcher kept: cost by size, and the machine."""
    kept = ROOT / "bench" / "results" / "match.md"
    if not kept.exists():
        return "`make bench` measures it; no full run has been kept yet."
    text = kept.read_text(encoding="utf-8")
    parts = text.split("\n## ")
    tables = [part for part in parts if part.startswith(("Cost by size", "Peers"))]
    facts = " ".join(parts[0].split("\n", 2)[2].split("\n\n")[0].split("\n")[:3])
    return "\n\n".join([*(f"**{part.strip()}".replace("\n", "**\n", 1) for part in tables), facts])


def _times(ratio: float) -> str:
    return f"{ratio:.0f}×" if ratio >= 10 else f"{ratio:.1f}×"


# -- the rendezvous --------------------------------------------------------------------------------------------------


_SENDERS = {
    "proof": "device, to the controller or a peer",
    "join": "device, to the owner of a group",
    "refused": "controller, or the owner of a group",
    "ask": "controller, or a peer",
    "group token": "the owner of a group",
}
"""Messages that do not go between a device and the controller only."""


def messages_table() -> str:
    """Return every message of the rendezvous, from whom, and its fields."""
    to_controller = set(typing.get_args(FromDevice))
    rows = []
    for name, (made, fields) in MESSAGES.items():
        sender = "device" if made in to_controller else "controller"
        sender = _SENDERS.get(name, sender)
        said = [f"`{field.name}`{' (or NULL)' if field.is_optional else ''}" for field in fields]
        first = (made.__doc__ or "").split("\n")[0]
        rows.append((f"`{name}`", sender, ", ".join(said) or "–", first))
    return _table(("message", "from", "fields", "meaning"), rows)


def refusals_table() -> str:
    """Return the stable codes with which a controller refuses."""
    return _table(("code", "name", "what it means"), ((str(each.code), each.name, each.reason) for each in Refusal))


def parameters_table() -> str:
    """Return the parameters of a controller, each with its reason."""
    rows = ((f"`{name}`", str(value), reason) for name, value, reason in Parameters().explain())
    return _table(("parameter", "default", "why"), rows)


def states_diagrams() -> str:
    """Return the two state machines of a device as diagrams."""
    parts = []
    for who, table in (("subscriber", SUBSCRIBER), ("publisher", PUBLISHER)):
        parts += [f"A {who}:", "", "```mermaid", diagram(table), "```", ""]
    return "\n".join(parts).strip()


# -- what is made where ----------------------------------------------------------------------------------------------


def tables_page() -> str:
    """Return the reference page of the log's and the pipeline's tables."""
    title, _, rest = as_markdown().partition("\n")
    made = ", ".join(f"`{name}`" for name in TABLES_MADE)
    status = (
        "The broker and `whimbrel log import` fill the tables of the log, which say *In*.\n"
        f"Of the others the pipeline makes {made}; the rest are schemas so far."
    )
    return f"{title}\n\n{MADE_BY}\n\n{status}\n{rest.strip()}\n"


API = ("whimbrel", "whimbrel.client", "whimbrel.spark", "whimbrel.testing")
"""What applications import."""


def api_page() -> str:
    """Return the public names of the packages that applications import, with their docstrings."""
    head = (
        f"# The Python interface\n\n{MADE_BY}\n\n"
        "What applications import: the names in `__all__` of these packages. Everything else may change without notice."
    )
    return "\n\n".join([head, *map(_package, API)]) + "\n"


def _package(name: str) -> str:
    module = importlib.import_module(name)
    parts = [f"## `{name}`", _unindented(module)]
    for each in sorted(module.__all__, key=str.lower):
        found = getattr(module, each)
        if inspect.isclass(found):
            parts.append(_class(each, found))
        elif callable(found):
            parts += [f"### `{each}{_signature(found)}`", _unindented(found)]
    return "\n\n".join(filter(None, parts))


def _class(name: str, found: type) -> str:
    is_error = issubclass(found, Exception)
    title = f"### `{name}`" if is_error or issubclass(found, enum.Enum) else f"### `{name}{_signature(found)}`"
    parts = [title, _unindented(found)]
    members: dict[str, Any] = dict(vars(found))
    for method, value in members.items():
        is_shown = not method.startswith("_") and not is_error and inspect.getdoc(value)
        if is_shown and isinstance(value, property):
            parts.append(f"#### `{method}`\n\n{_unindented(value)}")
        elif is_shown and inspect.isroutine(value):
            plain = getattr(value, "__func__", value)
            kind = "async " if inspect.iscoroutinefunction(plain) else ""
            parts.append(f"#### `{kind}{method}{_signature(plain)}`\n\n{_unindented(plain)}")
    return "\n\n".join(filter(None, parts))


def _signature(found: Callable[..., object]) -> str:
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return ""
    own = [
        each.replace(annotation=_Bare(each.annotation)) if isinstance(each.annotation, str) else each
        for each in signature.parameters.values()
        if each.name not in {"self", "cls"}
    ]
    returns = signature.return_annotation
    shown = signature.replace(parameters=own, return_annotation=_Bare(returns) if isinstance(returns, str) else returns)
    return re.sub(r" at 0x[0-9a-f]+|<factory>", "…", str(shown)).removesuffix(" -> None")


class _Bare:
    """An annotation that is shown as it is written, without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _unindented(found: object) -> str:
    """Return a docstring as Markdown: examples are fenced."""
    text = inspect.getdoc(found) or ""
    return re.sub(r"(?m)^(>>> .*(?:\n(?!\n).*)*)", r"```pycon\n\1\n```", text)


PAGES: Mapping[str, Callable[[], str]] = {
    "docs/reference/api.md": api_page,
    "docs/reference/cli.md": cli_page,
    "docs/reference/configuration.md": configuration_page,
    "docs/reference/metrics.md": metrics_page,
    "docs/reference/tables.md": tables_page,
}
SECTIONS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "docs/reference/measured.md": {"measured": measured},
    "docs/explanation/matching.md": {"matched": matched},
    "docs/reference/mqtt.md": {"reason codes": reason_codes_table, "properties": properties_table},
    "docs/reference/rendezvous.md": {
        "messages": messages_table,
        "refusals": refusals_table,
        "parameters": parameters_table,
        "states": states_diagrams,
    },
    "docs/reference/policies.md": {
        "operations": operations_table,
        "automatic variables": automatic_table,
        "policy limits": policy_limits_table,
        "policy codes": policy_codes_table,
    },
    "docs/reference/language.md": {"functions": functions_table, "error codes": codes_table, "limits": limits_table},
}


def wanted(root: Path) -> dict[Path, str]:
    """Return every generated file below *root* with the text it should have."""
    texts = {root / name: make() for name, make in PAGES.items()}
    for name, sections in SECTIONS.items():
        text = (root / name).read_text(encoding="utf-8")
        for section, make in sections.items():
            text = replaced(text, section, make(), source=name)
        texts[root / name] = text
    return texts


def replaced(text: str, section: str, content: str, *, source: str) -> str:
    """Return *text* with *content* between the markers of *section*."""
    begin, end = f"<!-- begin {section} -->", f"<!-- end {section} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{source}: wants the markers {begin} and {end} exactly once")
    markers = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return markers.sub(lambda _: f"{begin}\n{content}\n{end}", text)


def main() -> int:
    """Write what is stale, or only name it; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if anything is stale")
    is_check: bool = parser.parse_args().check
    stale = {path: text for path, text in wanted(ROOT).items() if not path.exists() or path.read_text("utf-8") != text}
    for path, text in stale.items():
        print(f"{path.relative_to(ROOT)}: {'stale; run make docs' if is_check else 'made anew'}")
        if not is_check:
            path.write_text(text, encoding="utf-8")
    return int(is_check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
