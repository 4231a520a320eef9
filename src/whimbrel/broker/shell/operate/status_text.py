"""Status as text: the lines that ``whimbrel status`` prints, and that a broker writes on SIGUSR1."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["status_text"]


def status_text(found: Mapping[str, object]) -> str:
    """Format a status as text, one line per subject; members that an older or newer broker lacks may be missing."""
    who = f"whimbrel {found.get('version')}, node {found.get('node')}, process {found.get('pid')}"
    if found.get("starting") is not None:
        return f"{who}\nstarting     {found.get('starting')}"
    lines = [f"{who}, up {_duration(_whole(found, 'uptime_s'))}"]
    ports = ", ".join(f"{kind} {port}" for kind, port in _part(found, "listening").items())
    lines.append(f"listening    {ports}")
    clients, sessions, held = _part(found, "clients"), _part(found, "sessions"), _part(found, "held")
    lines.append(
        f"clients      {_whole(clients, 'connected'):,} connected, {_whole(clients, 'known'):,} known, "
        f"{_whole(clients, 'slowed'):,} slowed"
    )
    lines.append(
        f"sessions     {_whole(sessions, 'named'):,} named, {_whole(sessions, 'subscriptions'):,} subscriptions"
    )
    lines.append(f"held         {_whole(held, 'notifications'):,} notifications, {_size(_whole(held, 'bytes'))}")
    retained, memory = _part(found, "retained"), _part(found, "memory")
    lines.append(f"retained     {_whole(retained, 'messages'):,} messages, {_size(_whole(retained, 'bytes'))}")
    limit = _whole(memory, "limit")
    lines.append(f"memory       {_size(_whole(memory, 'bytes'))} of {_size(limit) if limit else 'any number of bytes'}")
    rates = _part(found, "per_second")
    lines.append(
        f"last minute  {rates.get('received', 0)} received and {rates.get('sent', 0)} sent a second, "
        f"{rates.get('dropped', 0)} dropped"
    )
    log, lag = _part(found, "log"), _part(found, "lag")
    lines.append(
        f"log          {_size(_whole(log, 'bytes'))}, records to {_whole(log, 'last_seq'):,}, "
        f"{_size(_whole(log, 'free_bytes'))} free on the disk"
    )
    lines.append(
        f"behind       {_whole(lag, 'not_durable'):,} records not on disk, {_whole(lag, 'view'):,} not in the view, "
        f"event loop {_whole(lag, 'event_loop_ms')} ms late at most"
    )
    for name, behind in _part(lag, "readers").items():
        lines.append(
            f"reader       {name}: {behind:,} records behind" if behind else f"reader       {name}: up to date"
        )
    users, rights = found.get("users"), found.get("rights")
    until = found.get("certificate_until")
    access = ["no users" if users is None else f"{users} users", f"rights of {rights}" if rights else "no rights file"]
    access += [f"certificate until {until}"] if until else []
    lines.append(f"access       {', '.join(access)}")
    lines.append(f"kernels      {found.get('kernels')}")
    warnings = found.get("warnings")
    lines += [f"WARNING      {each}" for each in warnings] if isinstance(warnings, list) else []
    return "\n".join(lines)


def _part(tree: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = tree.get(name)
    return found if isinstance(found, Mapping) else {}


def _whole(tree: Mapping[str, object], name: str) -> int:
    found = tree.get(name)
    return found if isinstance(found, int) else 0


def _size(size_bytes: int) -> str:
    for unit, least in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= least:
            return f"{size_bytes / least:.1f} {unit}"
    return f"{size_bytes} bytes"


def _duration(seconds: int) -> str:
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, seconds = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    said = [f"{count} {unit}" for count, unit in parts if count]
    return " ".join(said[:2]) or "0 s"
