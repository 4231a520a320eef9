"""The status of a node: its samples and neighbours, the age of its clock and control data, and refused samples."""

from __future__ import annotations

from collections.abc import Iterable

from whimbrel.carry.control.segments import REASONS
from whimbrel.carry.daemon.journal import address_name, sample_name
from whimbrel.carry.participant import Participant
from whimbrel.carry.transport.interface import Transport
from whimbrel.model.clock import US_PER_S

__all__ = ["node_metrics", "node_status", "status_lines"]

_MAX_SHOWN = 64
_WAY_SERVER = ("name", "broker", "broker_trouble", "users", "census_age_s", "bridged", "waiting_for_broker")
"""Members that a way-server adds to the status of a node, in the order of their lines."""
_ADMIN = (
    *("broker", "broker_trouble", "users", "places", "plan", "plan_age_s"),
    *("control_version", "control_age_s", "topics", "topics_left_out", "way_servers", "refused"),
)


def node_status(participant: Participant, transport: Transport, *, own: int) -> dict[str, object]:
    """Return the status of a node as values for JSON; ages and differences are in seconds."""
    now = participant.clock.now(own)
    data, set_at = participant.control.in_force, participant.clock.set_at
    return {
        "address": address_name(participant.address),
        "clock": "set" if participant.clock.is_synchronised else "own",
        "clock_age_s": None if set_at is None else round((now - set_at) / US_PER_S, 1),
        "tolerance_s": participant.clock.tolerance_us / US_PER_S,
        "control_version": None if data is None else data.version,
        "control_age_s": None if data is None else round((now - data.version) / US_PER_S, 1),
        "control_ignored": participant.control.ignored,
        "neighbours": [address_name(each) for each in participant.neighbours[-_MAX_SHOWN:]],
        "subscriptions": participant.subscriptions,
        "places": participant.rules.places,
        "stored": [
            {
                "topic": participant.topics.name_of(copy.sample.topic),
                "sample": sample_name(copy.sample.id),
                "copies": copy.copies,
                "removable": copy.is_removable,
            }
            for copy in participant.carrier.stored[:_MAX_SHOWN]
        ],
        "refused": [
            {"neighbour": address_name(neighbour), "ahead_s": round(ahead_us / US_PER_S, 3)}
            for neighbour, (ahead_us, _) in participant.refusals.items()
        ],
        "counts": dict(sorted((participant.counts + transport.counts).items())),
    }


def status_lines(status: dict[str, object]) -> list[str]:
    """Return a status of a daemon as lines of text."""
    role = str(status.get("role", "node"))
    if role == "admin":
        return [role, *_members(status, _ADMIN)]
    lines = [f"{role} {status['address']}: {_join(status['neighbours'])} in reach"]
    lines += _members(status, _WAY_SERVER)
    clock, tolerance_s = status["clock"], status["tolerance_s"]
    age_s = status["clock_age_s"]
    since = "" if age_s is None else f" {age_s} s ago"
    lines.append(f"clock: {clock}{since}; samples may be {tolerance_s:g} s in the future")
    version = status["control_version"]
    if version is None:
        lines.append("control data: none")
    else:
        lines.append(f"control data: version {version}, {status['control_age_s']} s old")
    ignored = status["control_ignored"]
    assert isinstance(ignored, dict)
    if any(ignored.values()):
        counts = ", ".join(f"{count} {reason}" for reason, count in ignored.items() if count)
        lines.append(f"control data that was ignored: {counts}")
    lines.append(f"subscriptions: {_join(status['subscriptions'])}")
    stored, refused = status["stored"], status["refused"]
    assert isinstance(stored, list)
    assert isinstance(refused, list)
    lines.append(f"memory: {len(stored)} of {status['places']} places")
    for each in stored:
        mark = ", removable" if each["removable"] else ""
        lines.append(f"  {each['topic']} {each['sample']}: {each['copies']} copies{mark}")
    lines += [
        f"refused: samples of {each['neighbour']} are {each['ahead_s']} s ahead of this clock" for each in refused
    ]
    return lines


def _members(status: dict[str, object], names: Iterable[str]) -> list[str]:
    """Return a line for each of *names* in *status*; no trouble with the broker has no line."""
    shown = [name for name in names if name in status and (name != "broker_trouble" or status[name] is not None)]
    return [f"{name}: {_format(status[name])}" for name in shown]


def _format(value: object) -> str:
    if isinstance(value, list):
        return (
            ", ".join(
                " ".join(f"{name} {each[name]}" for name in each) if isinstance(each, dict) else str(each)
                for each in value
            )
            or "none"
        )
    return "unknown" if value is None else str(value)


def _join(names: object) -> str:
    assert isinstance(names, list)
    return ", ".join(names) or "none"


def node_metrics(participant: Participant, transport: Transport, *, own: int) -> dict[str, float]:
    """Return the metrics of a node by name, for ``/metrics``; names of counters end in ``_total``."""
    now = participant.clock.now(own)
    data, set_at = participant.control.in_force, participant.clock.set_at
    found: dict[str, float] = {
        "neighbours": len(participant.neighbours),
        "samples_stored": len(participant.carrier.stored),
        "subscriptions": len(participant.subscriptions),
        "requests_waiting": participant.pending,
    }
    if data is not None:
        found["control_age_seconds"] = (now - data.version) / US_PER_S
    if set_at is not None:
        found["clock_age_seconds"] = (now - set_at) / US_PER_S
    for reason in REASONS:
        found[f"control_{reason}_total"] = participant.control.ignored.get(reason, 0)
    for name, count in (participant.counts + transport.counts).items():
        found[f"{name.replace(' ', '_')}_total"] = count
    return found
