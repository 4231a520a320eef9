"""Eddie: looks at the machine it runs on, runs rules over what it sees, and publishes what they find.

After Eddie (Telford and Miles, 1998), an early application of Elvin. A rule's condition is a text of Whimbrel's filter
language over the readings, the same that subscribers use; so what may be said of a message may be said of a machine.

    python examples/eddie/eddie.py examples/eddie/rules.toml --once --dry-run

Published, as JSON objects whose members are attributes:

    eddie/<host>/data          all readings, every ``every_s`` seconds
    eddie/<host>/rule/<name>   a rule that became true ("state": "on") or ceased to be ("off"), with all readings
    tickertape/<group>         the rule's text, if it names a group (see ``whimbrel tickertape``)

Rule: a rule changes when ``for`` checks in a row say the same. What is undefined, because a reading is missing, says
nothing: a monitor that lost an eye neither raises the alarm nor calls it off.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import sys
import time
import tomllib
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from whimbrel import Filter, FilterError, WhimbrelError
from whimbrel.client import Client
from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.model import checked

Readings = dict[str, object]
"""Attributes by name; text and numbers."""

MB = 1_000_000


class Publication(NamedTuple):
    """Something to tell the world."""

    topic: str
    body: Mapping[str, object]


# -- reading the machine ---------------------------------------------------------------------------------------------


def read_machine(disks: Mapping[str, str], watched: Mapping[str, str], proc: Path = Path("/proc")) -> Readings:
    """Return what Linux tells of this machine; *disks* are paths and *watched* names of processes, by our names."""
    readings: Readings = {"host": socket.gethostname()}
    readings |= _load(proc) | _memory(proc) | _processes(proc, watched)
    for name, path in disks.items():
        readings |= _disk(name, path)
    return readings


def _load(proc: Path) -> Readings:
    one, five, fifteen, *_ = (proc / "loadavg").read_text().split()
    cpus = os.cpu_count() or 1
    return {
        "load.1m": float(one),
        "load.5m": float(five),
        "load.15m": float(fifteen),
        "load.per-cpu": round(float(one) / cpus, 3),
        "cpus": cpus,
        "uptime-s": int(float((proc / "uptime").read_text().split()[0])),
    }


def _memory(proc: Path) -> Readings:
    lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
    size = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}
    return {
        "memory.total-mb": size["MemTotal"] // MB,
        "memory.available-mb": size["MemAvailable"] // MB,
        "memory.used-percent": _percent(size["MemTotal"] - size["MemAvailable"], size["MemTotal"]),
        "swap.used-percent": _percent(size["SwapTotal"] - size["SwapFree"], size["SwapTotal"]),
    }


def _disk(name: str, path: str) -> Readings:
    try:
        found = os.statvfs(path)
    except OSError as error:  # not mounted, or gone: no reading, and a note of why
        return {f"disk.{name}.error": error.strerror or "unknown"}
    used, available = found.f_blocks - found.f_bfree, found.f_bavail
    return {
        f"disk.{name}.free-mb": available * found.f_frsize // MB,
        f"disk.{name}.used-percent": _percent(used, used + available),  # as df counts
        f"disk.{name}.files-percent": _percent(found.f_files - found.f_favail, found.f_files),
    }


def _processes(proc: Path, watched: Mapping[str, str]) -> Readings:
    stats = [text for folder in proc.iterdir() if folder.name.isdigit() for text in _text_of(folder / "stat")]
    # "4711 (a name) R …": the name may have spaces and brackets, so the last bracket ends it.
    states = [text.rpartition(")")[2].split()[0] for text in stats]
    names = [text.partition("(")[2].rpartition(")")[0] for text in stats]
    readings: Readings = {"processes.count": len(stats)}
    readings |= {"processes.running": states.count("R"), "processes.zombies": states.count("Z")}
    # Linux keeps 15 characters of a name.
    return readings | {f"process.{ours}.count": names.count(name[:15]) for ours, name in watched.items()}


def _text_of(path: Path) -> Iterator[str]:
    try:
        yield path.read_text(errors="replace")
    except OSError:  # the process ended while we looked
        return


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 1) if whole else 0.0  # of nothing, nothing is used


# -- rules -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Rule:
    """A condition with a memory: whether it is on, and for how many checks it has been otherwise."""

    name: str
    when: Filter
    text: str
    """For people; ``{name}`` stands for a reading."""
    level: str = "warning"
    checks: int = 1
    tickertape: str | None = None
    is_on: bool = field(default=False, init=False)
    _otherwise: int = field(default=0, init=False)

    def check(self, readings: Readings) -> bool:
        """Look at *readings*; tell whether the rule changed."""
        verdict = self.when.verdict(checked(readings))
        if verdict is not None:
            self._otherwise = self._otherwise + 1 if verdict is not self.is_on else 0
        if self._otherwise < self.checks:
            return False
        self.is_on, self._otherwise = not self.is_on, 0
        return True

    def told(self, readings: Readings) -> Iterator[Publication]:
        """Yield what the world is told of the rule as it is now."""
        host, state = readings["host"], "on" if self.is_on else "off"
        said = re.sub(r"\{([^{}]+)\}", lambda found: str(readings.get(found[1], "?")), self.text)
        text = f"{host}: {said}" if self.is_on else f"{host}: over: {said}"
        facts = {"rule": self.name, "state": state, "level": self.level, "when": self.when.text, "text": text}
        yield Publication(f"eddie/{host}/rule/{self.name}", facts | readings)
        if self.tickertape is not None:
            message = {"TICKERTAPE": self.tickertape, "USER": "eddie", "TICKERTEXT": text, "TIMEOUT": 10}
            yield Publication(f"tickertape/{self.tickertape}", message | {"Message-Id": uuid.uuid4().hex})


@dataclass(slots=True, kw_only=True)
class Monitor:
    """Rules, what they look at, and how often."""

    rules: list[Rule]
    disks: Mapping[str, str]
    processes: Mapping[str, str]
    check_s: float
    every_s: float
    _due_at: float = field(default=0.0, init=False)

    def look(self, readings: Readings, *, now: float) -> Iterator[Publication]:
        """Yield what *readings* of the time *now* give to tell: all of them if they are due, and rules that changed."""
        if now >= self._due_at:
            self._due_at = now + self.every_s
            yield Publication(f"eddie/{readings['host']}/data", readings)
        for rule in self.rules:
            if rule.check(readings):
                yield from rule.told(readings)


def read_rules(text: str) -> Monitor:
    """Return the monitor that a file of rules describes; what is not known is refused, lest a rule be silent."""
    found = tomllib.loads(text)
    _only(found, "file", {"check_s", "every_s", "disks", "processes", "rule"})
    return Monitor(
        rules=[_rule(table) for table in found.get("rule", [])],
        disks=_names("disks", found.get("disks", {"root": "/"})),
        processes=_names("processes", found.get("processes", {})),
        check_s=_number("check_s", found.get("check_s", 10), least=0.1),
        every_s=_number("every_s", found.get("every_s", 60), least=0.1),
    )


def _rule(table: Mapping[str, object]) -> Rule:
    _only(table, "rule", {"name", "when", "text", "for", "level", "tickertape"}, frozenset({"name", "when", "text"}))
    rule = Rule(name=_name("name of a rule", table["name"]), when=Filter(str(table["when"])), text=str(table["text"]))
    rule.level = str(table.get("level", rule.level))
    rule.checks = int(_number("for", table.get("for", 1), least=1))
    rule.tickertape = _name("tickertape", table["tickertape"]) if "tickertape" in table else None
    return rule


def _only(table: Mapping[str, object], what: str, known: set[str], needed: frozenset[str] = frozenset()) -> None:
    for name in sorted(table.keys() - known):
        raise InvalidValueError(what, name, ", ".join(sorted(known)))
    for name in sorted(needed - table.keys()):
        raise InvalidValueError(what, Phrase(f"no {name}"), f"a rule with {', '.join(sorted(needed))}")


def _names(what: str, found: Mapping[str, object]) -> dict[str, str]:
    return {_name(what, name): str(value) for name, value in found.items()}


def _name(what: str, found: object) -> str:
    """Return a name that is a level of a topic and a part of an attribute's name."""
    if not isinstance(found, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", found):
        raise InvalidValueError(what, found, "a letter, then letters, digits, - and _")
    return found


def _number(what: str, found: object, *, least: float) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float) or not least <= found <= 1e9:
        raise InvalidValueError(what, found, f"a number from {least:g} on")
    return found


# -- running ---------------------------------------------------------------------------------------------------------


async def watch(monitor: Monitor, publish: Callable[[Publication], Awaitable[object]], *, is_once: bool) -> None:
    """Look, tell, wait, for ever; or once, and then every rule decides at once."""
    if is_once:
        for rule in monitor.rules:
            rule.checks = 1
    readings = read_machine(monitor.disks, monitor.processes)
    for rule in monitor.rules:
        if rule.when.verdict(checked(readings)) is None:
            print(f"eddie: rule {rule.name}: undefined, for a reading that it needs is not there", file=sys.stderr)
    while True:
        for publication in monitor.look(readings, now=time.monotonic()):
            await publish(publication)
        if is_once:
            return
        await asyncio.sleep(monitor.check_s)
        readings = read_machine(monitor.disks, monitor.processes)


async def print_it(publication: Publication) -> None:
    """Print what would be published."""
    print(publication.topic, json.dumps(publication.body, ensure_ascii=False), flush=True)


async def run(monitor: Monitor, options: argparse.Namespace) -> None:
    """Do what the command line says. While the broker cannot be reached, Eddie waits for it, and looks later."""
    if options.dry_run:
        await watch(monitor, print_it, is_once=options.once)
        return
    address = {"host": options.host, "port": options.port}
    name = f"eddie@{socket.gethostname()}"
    async with Client(**address, client_id=name, told=lambda sentence: print(sentence, file=sys.stderr)) as client:
        await watch(monitor, lambda each: client.publish(each.topic, each.body, qos=1), is_once=options.once)


def main() -> int:
    """Run; return the exit status: 1 if the broker cannot be reached, 2 if the rules cannot be read."""
    parser = argparse.ArgumentParser(description="Run rules over this machine's readings and publish what they find.")
    parser.add_argument("rules", type=Path, help="the file of rules, TOML")
    parser.add_argument("--host", default="127.0.0.1", help="where the broker is")
    parser.add_argument("--port", default=1883, type=int, help="its port")
    parser.add_argument("--once", action="store_true", help="look once and exit; `for` does not count")
    parser.add_argument("--dry-run", action="store_true", help="print what would be published")
    options = parser.parse_args()
    if not Path("/proc/loadavg").exists():
        return _fail(f"Eddie reads /proc, as Linux has it; there is none here ({sys.platform})", 2)
    try:
        monitor = read_rules(options.rules.read_text(encoding="utf-8"))
    except FilterError as error:
        return _fail(f"{options.rules}: {error.pointed()}", 2)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, InvalidValueError) as error:
        return _fail(f"{options.rules}: {error}", 2)
    try:
        asyncio.run(run(monitor, options))
    except WhimbrelError as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return 130
    return 0


def _fail(reason: str, status: int) -> int:
    print(f"eddie: {reason}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
