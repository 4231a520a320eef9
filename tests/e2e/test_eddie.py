"""Eddie, the example that monitors machines: its rules, its readings, and what reaches a broker."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from examples.eddie.eddie import Monitor, Publication, Readings, read_machine, read_rules
from tests.e2e.broker_process import BrokerProcess

from whimbrel import FilterError
from whimbrel.client import Client, Message
from whimbrel.errors import InvalidValueError

ROOT = Path(__file__).resolve().parents[2]
EDDIE = ROOT / "examples" / "eddie"
PAGE = ROOT / "docs" / "how-to" / "monitor-machines.md"
_PATIENCE_S = 60

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Eddie reads /proc")


def monitor(**rule: object) -> Monitor:
    """Return a monitor with one rule about heat."""
    fields = {"name": "hot", "when": "heat > 30", "text": "heat {heat}, {nothing}"} | rule
    return read_rules("[[rule]]\n" + "\n".join(f"{name} = {json.dumps(value)}" for name, value in fields.items()))


def states(found: Monitor, *heats: int | None) -> list[str]:
    """Return what a rule tells after each of some readings: on, off or nothing."""
    told: list[str] = []
    for heat in heats:
        readings: Readings = {"host": "h"} | ({} if heat is None else {"heat": heat})
        changes = [each.body["state"] for each in found.look(readings, now=-1.0)]  # before anything is due
        told.append(str(changes[0]) if changes else "")
    return told


# -- rules -----------------------------------------------------------------------------------------------------------


def test_a_rule_tells_its_changes_only() -> None:
    """An alarm that repeats itself is soon ignored."""
    assert states(monitor(), 20, 31, 32, 20, 20) == ["", "on", "", "off", ""]


def test_a_rule_changes_after_some_checks_in_a_row() -> None:
    """Both ways: one spike is no fire, and one good moment is no end of it."""
    found = states(monitor(**{"for": 3}), 31, 31, 20, 31, 31, 31, 20, 31, 20, 20, 20)
    assert found == ["", "", "", "", "", "on", "", "", "", "", "off"]


def test_what_is_not_known_changes_nothing() -> None:
    """A sensor that is silent neither raises the alarm nor calls it off, nor spoils the count."""
    assert states(monitor(**{"for": 2}), None, 31, None, 31, None, None, 20, None, 20) == [
        "", "", "", "on", "", "", "", "", "off",
    ]  # fmt: skip


def test_a_rule_is_told_with_all_readings_and_on_the_tickertape() -> None:
    """Whoever gets it can filter by any of them, and needs not ask back."""
    found = monitor(tickertape="machines", level="alarm")
    told, message = found.look({"host": "h", "heat": 31, "fan": 2}, now=-1.0)
    assert told == Publication(
        "eddie/h/rule/hot",
        {
            "rule": "hot", "state": "on", "level": "alarm", "when": "heat > 30", "text": "h: heat 31, ?",
            "host": "h", "heat": 31, "fan": 2,
        },
    )  # fmt: skip
    assert message.topic == "tickertape/machines"
    assert message.body["TICKERTEXT"] == "h: heat 31, ?"


def test_readings_are_told_as_often_as_asked() -> None:
    """Plain data, for whoever wants to draw it."""
    found = read_rules("every_s = 60")
    topics = [[each.topic for each in found.look({"host": "h"}, now=now)] for now in (0, 10, 59, 60, 61, 200)]
    assert topics == [["eddie/h/data"], [], [], ["eddie/h/data"], [], ["eddie/h/data"]]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("checks = 3", "file: found 'checks'"),
        ("check_s = 0", "check_s: found 0"),
        ("[disks]\n'a/b' = '/'", "disks: found 'a/b'"),
        ("[[rule]]\nname = 'x'", "rule: found no text"),
        ("[[rule]]\nname = 'a/b'\nwhen = 'a > 1'\ntext = ''", "name of a rule: found 'a/b'"),
        ("[[rule]]\nname = 'x'\nwhen = 'a > 1'\ntext = ''\nfor = 0", "for: found 0"),
    ],
)
def test_a_mistake_in_the_rules_is_named(text: str, found: str) -> None:
    """A rule that is silently left out is an alarm that never comes."""
    with pytest.raises(InvalidValueError, match=re.escape(found)):
        read_rules(text)


def test_a_condition_is_checked_before_anything_runs() -> None:
    """It is a filter text, with a filter text's errors."""
    with pytest.raises(FilterError, match="is not an operator"):
        monitor(when="heat = 30")


def test_the_rules_beside_it_are_five_and_fit_the_readings() -> None:
    """What newcomers copy must be right."""
    found = read_rules((EDDIE / "rules.toml").read_text(encoding="utf-8"))
    assert [rule.name for rule in found.rules] == ["load", "memory", "disk-full", "zombies", "rebooted"]


# -- readings --------------------------------------------------------------------------------------------------------


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a /proc of three processes; the name of one tries to be clever."""
    (tmp_path / "loadavg").write_text("1.50 0.75 0.25 2/345 6789\n")
    (tmp_path / "uptime").write_text("123.45 678.90\n")
    meminfo = "MemTotal: 1000000 kB\nMemFree: 1 kB\nMemAvailable: 250000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
    (tmp_path / "meminfo").write_text(meminfo)
    for pid, name, state in ((1, "init", "S"), (20, "a) Z (b", "R"), (300, "sshd", "Z")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) {state} 0 0")
    (tmp_path / "4000").mkdir()  # it ended meanwhile
    return tmp_path


def test_readings_are_numbers_with_names(proc: Path) -> None:
    """Names that filters can speak of."""
    found = read_machine({"here": str(proc), "gone": str(proc / "nowhere")}, {"ssh": "sshd", "web": "httpd"}, proc)
    expected = {
        "load.1m": 1.5, "load.5m": 0.75, "load.15m": 0.25, "uptime-s": 123, "memory.total-mb": 1024,
        "memory.available-mb": 256, "memory.used-percent": 75.0, "swap.used-percent": 0.0, "processes.count": 3,
        "processes.running": 1, "processes.zombies": 1, "process.ssh.count": 1, "process.web.count": 0,
        "disk.gone.error": "No such file or directory",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert {"host", "cpus", "load.per-cpu", "disk.here.used-percent", "disk.here.free-mb"} <= found.keys()
    assert "disk.gone.used-percent" not in found


# -- running ---------------------------------------------------------------------------------------------------------


def eddie(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    command = [sys.executable, str(EDDIE / "eddie.py"), *arguments]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=_PATIENCE_S, check=False)


def parts(lines: str) -> list[tuple[str, dict[str, object]]]:
    """Return topics and bodies."""
    pairs = (line.partition(" ") for line in lines.splitlines())
    return [(topic, json.loads(body)) for topic, _, body in pairs]


@LINUX
def test_once_and_dry_it_prints_what_it_sees(tmp_path: Path) -> None:
    """The first thing anybody tries."""
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\nname = 'up'\nwhen = 'uptime-s >= 0'\nfor = 3\ntext = 'up'\n")
    done = eddie(str(rules), "--once", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    (data, readings), (rule, told) = parts(done.stdout)
    assert data == f"eddie/{readings['host']}/data"
    assert rule == f"eddie/{readings['host']}/rule/up"
    assert told["state"] == "on"
    assert told | readings == told


@LINUX
def test_the_rules_beside_it_are_defined_on_this_machine() -> None:
    """A reading that was renamed would leave a rule silent for ever; Eddie says so."""
    done = eddie(str(EDDIE / "rules.toml"), "--once", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")


@LINUX
def test_a_rule_without_its_reading_is_named(tmp_path: Path) -> None:
    """Nothing is wrong with it, but it will never be true."""
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\nname = 'typo'\nwhen = 'lode > 1'\ntext = ''\n")
    done = eddie(str(rules), "--once", "--dry-run")
    assert done.returncode == 0
    assert done.stderr.startswith("eddie: rule typo: undefined")


@LINUX
def test_what_it_publishes_is_selected_by_content(tmp_path: Path) -> None:
    """One language at both ends: the rule at the machine, the filter at the subscriber."""
    rules = tmp_path / "rules.toml"
    text = "[[rule]]\nname = 'up'\nwhen = 'uptime-s >= 0'\ntext = 'up'\nlevel = '{}'\ntickertape = 'machines'\n"
    wanted = "level == 'alarm' || USER == 'eddie'"
    with BrokerProcess(tmp_path / "broker") as broker:
        assert asyncio.run(_received(broker.port, wanted, 0)) == []
        for level in ("note", "alarm"):
            rules.write_text(text.format(level))
            done = eddie(str(rules), "--once", "--port", str(broker.port))
            assert (done.returncode, done.stderr) == (0, "")
        received = asyncio.run(_received(broker.port, wanted, 3))
    assert [message.topic.partition("/")[0] for message in received] == ["tickertape", "eddie", "tickertape"]
    assert json.loads(received[1].payload)["level"] == "alarm"


async def _received(port: int, wanted: str, count: int) -> list[Message]:
    """Be an administrator who is away most of the time; return the next messages."""
    async with asyncio.timeout(_PATIENCE_S), Client(port=port, client_id="admin", session_expiry_s=600) as client:
        for topic_filter in ("eddie/#", "tickertape/#"):
            await client.subscribe(topic_filter, filter=wanted)
        return [await anext(client.messages()) for _ in range(count)]


@LINUX
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path) -> None:
    """1: no broker; 2: no rules."""
    rules = tmp_path / "rules.toml"
    rules.write_text("")
    done = eddie(str(rules), "--once", "--port", "1")
    assert (done.returncode, done.stderr) == (1, "eddie: cannot connect to 127.0.0.1 port 1: connection refused\n")
    rules.write_text("[[rule]]\nname = 'x'\nwhen = 'a = 1'\ntext = ''\n")
    done = eddie(str(rules), "--once", "--dry-run")
    assert done.returncode == 2
    assert done.stderr.endswith("  a = 1\n    ^\n")
    assert eddie(str(tmp_path / "nowhere"), "--once").returncode == 2


# -- the page --------------------------------------------------------------------------------------------------------


def test_the_rules_on_the_page_are_rules() -> None:
    """What is shown as TOML can be used as it is."""
    blocks = re.findall(r"^```toml[^\n]*\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        read_rules(block)


@LINUX
def test_the_commands_on_the_page_run() -> None:
    """Those of Eddie, from the top of the repository; what they print depends on the machine."""
    commands = re.findall(r"^\$ python (examples/eddie/.*--dry-run)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert commands
    for command in commands:
        done = subprocess.run([sys.executable, *shlex.split(command)], cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
