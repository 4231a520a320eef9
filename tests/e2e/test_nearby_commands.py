"""``whimbrel nearby``: the how-to as a reader would run it, and what is said when something is wrong."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.test_nearby_street import _has_namespaces

from whimbrel.cli.main import main
from whimbrel.errors import InvalidValueError, MalformedLineError
from whimbrel.log.reader import read
from whimbrel.model.notification import Notification
from whimbrel.model.place import Place
from whimbrel.nearby.transport.fixes import GpsdError, fixes_from_gpsd, place_at, read_fixes
from whimbrel.sim.mobility.positions import position_lines
from whimbrel.sim.mobility.waypoint import RandomWaypoint

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "a-street-on-your-desk.md"
FENCE = re.compile(r"^```(?P<language>[a-z]*)[ ]?(?P<title>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = list(FENCE.finditer(PAGE.read_text(encoding="utf-8")))
NEEDS_NAMESPACES = pytest.mark.skipif(not _has_namespaces(), reason="network namespaces are not permitted here")
LIGHT = ["traffic light", "--vocabulary", "words.json"]


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nodes count their starts below *tmp_path*."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the files of the page."""
    for block in BLOCKS:
        if block["title"]:
            (tmp_path / block["title"]).write_text(block["text"], encoding="utf-8")
    return tmp_path


@NEEDS_NAMESPACES
def test_the_street_on_your_desk_is_as_the_page_says(folder: Path) -> None:
    """Every line of the page's output, and the event in the log with place, radius and deadline."""
    command = folder / "bin" / "whimbrel"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m whimbrel "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["unshare", "-Urn", "sh", "street.sh"],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    (expected,) = (block["text"] for block in BLOCKS if block["language"] == "text")
    assert done.stdout.startswith(expected), done.stdout + done.stderr
    logged = done.stdout.removeprefix(expected)
    for said in ("nearby/traffic light", "red", "light:", "200", "53.3438"):
        assert said in logged


DESK = (
    "ip link set lo up; ip link add desk type veth peer name plug; ip link set desk up; ip link set plug up; sleep 2\n"
)
WAY_OUT = """
$W serve --node town --data broker > serve.out 2>&1 &
serving=$!
until grep -q listening serve.out; do sleep 0.1; done
$W subscribe 'nearby/#' --filter "status == 'red'" --count 1 --qos 1 > far.out &
far=$!
$W nearby listen --vocabulary words.json --name post --place 53.3438,-6.2540 --interface desk --log street \
    --host 127.0.0.1 --count 2 --seconds 40 > post.out 2> post.notes &
post=$!
$W nearby subscribe 'traffic light' --vocabulary words.json --name car --place 53.3447,-6.2546 --interface desk \
    --host 127.0.0.1 --seconds 12 --json > car.out 2> car.notes &
car=$!
$W nearby subscribe 'traffic light' --vocabulary words.json --name away --place 53.4338,-6.2546 --interface desk \
    --host 127.0.0.1 --count 2 --seconds 40 --json > away.out 2> away.notes &
away=$!
(sleep 7; echo '{"status": "red"}'; sleep 1; echo '{"status": "green"}') | $W nearby announce 'traffic light' \
    --vocabulary words.json --name light --members 2 --place 53.3438,-6.2546 --radius 200 --deadline 4 \
    --interface desk > light.out 2> light.notes
wait $far $post $away $car
kill $serving
wait $serving
"""


def _in_namespace(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run *script* where there is an interface ``desk`` with multicast, and nothing beyond it."""
    return subprocess.run(
        ["unshare", "-Urn", "sh", "-c", DESK + script],
        cwd=folder,
        env={**os.environ, "W": f"{sys.executable} -m whimbrel"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@NEEDS_NAMESPACES
def test_an_event_leaves_its_area_by_log_and_broker_and_comes_once(folder: Path) -> None:
    """Listening in: a real broker has it with place, radius and deadline, the log too; both ways make one copy."""
    done = _in_namespace(WAY_OUT, folder)
    notes = "".join(each.read_text(encoding="utf-8") for each in sorted(folder.glob("*.notes")))
    assert done.returncode == 0, done.stderr + notes
    topic, _, text = (folder / "far.out").read_text(encoding="utf-8").partition(" {")
    body = json.loads("{" + text)
    assert topic == "nearby/traffic light"
    assert body["place"] == "53.3438,-6.2546"
    assert (body["radius_m"], body["status"]) == (200, "red")
    assert 0 < body["remaining_ms"] <= 4_000
    facts = [fact for fact in read(folder / "street", "post") if isinstance(fact, Notification)]
    assert [fact.attributes["status"] for fact in facts] == ["red", "green"]
    logged = facts[0]
    assert (logged.subject, logged.publisher, logged.radius_m) == ("nearby/traffic light", "light", 200)
    assert logged.place == Place(53.3438, -6.2546)
    assert logged.deadline_at is not None
    assert logged.published_at < logged.deadline_at <= logged.published_at + 4_000_000
    assert logged.attributes["event"] == body["event"]
    published = [
        fact
        for fact in read(folder / "broker" / "log", "town")
        if isinstance(fact, Notification) and fact.subject == "nearby/traffic light"
    ]
    assert [fact.attributes["event"] for fact in published] == [fact.attributes["event"] for fact in facts]
    for consumer in ("car", "away"):  # one has both ways, the other is ten kilometres away and has one
        lines = (folder / f"{consumer}.out").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["event"] for line in lines] == [fact.attributes["event"] for fact in facts], consumer


@NEEDS_NAMESPACES
@pytest.mark.parametrize("command", ["announce --radius 100", "subscribe"])
def test_a_gpsd_without_a_fix_ends_the_command(folder: Path, command: str) -> None:
    """One sentence and exit code 2, whether the receiver says that it has none or says nothing."""
    (folder / "gpsd.py").write_text(
        "import socket, sys, time\n"
        "server = socket.create_server(('127.0.0.1', 2947))\n"
        "link, _ = server.accept()\n"
        """link.sendall(b'{"class": "VERSION"}\\n{"class": "TPV", "mode": 1}\\n')\n"""
        "time.sleep(30)\n",
        encoding="utf-8",
    )
    verb, _, more = command.partition(" ")
    script = (
        f"{sys.executable} gpsd.py & receiver=$!\nsleep 0.5\n"
        f"$W nearby {verb} 'traffic light' {more} --vocabulary words.json --name car --gpsd 127.0.0.1"
        " --fix-within 0.5 --interface desk < /dev/null; code=$?\nkill $receiver\nexit $code"
    )
    done = _in_namespace(script, folder)
    assert done.returncode == 2
    assert done.stderr == (
        "error: gpsd at 127.0.0.1: no fix within 0.5 s; wait under an open sky, or give --place or --fixes\n"
    )


@NEEDS_NAMESPACES
def test_an_interface_without_multicast_ends_the_command(folder: Path) -> None:
    """One sentence and exit code 2: loopback has no route for multicast, and neither has an interface that is down."""
    script = (
        "ip link add flat type veth peer name other\nfor each in lo flat nope; do\n"
        "$W nearby subscribe 'traffic light' --vocabulary words.json --name car --place 1,1 --interface $each"
        "; echo $?; done"
    )
    done = _in_namespace(script, folder)
    assert done.stdout.split() == ["2", "2", "2"]
    loopback, down, missing = done.stderr.splitlines()
    reason = "(network is unreachable|cannot assign requested address)"
    no_route = f"{reason}; allowed is one that is up and has an IPv6 link-local address$"
    for interface, line in (("lo", loopback), ("flat", down)):
        assert re.match(f"error: interface {interface} cannot be used for IPv6 multicast: {no_route}", line), line
    assert missing.startswith("error: interface nope cannot be used for IPv6 multicast: there is no such interface;")


@NEEDS_NAMESPACES
def test_what_contradicts_another_node_ends_the_command(folder: Path) -> None:
    """One sentence and exit code 2, not a node that silently hears nothing: another vocabulary, other cells."""
    (folder / "other.json").write_text('{"traffic light": {"status": "int32"}}', encoding="utf-8")
    script = (
        "sleep 60 2>/dev/null | $W nearby announce 'traffic light' --vocabulary words.json --name light --place 1,1"
        " --radius 100 --interface desk >/dev/null 2>&1 & light=$!\n"
        "$W nearby subscribe 'traffic light' --vocabulary other.json --name car --place 1,1 --interface desk"
        " --seconds 30; echo $?\n"
        "sleep 4; sleep 1 | $W nearby announce 'traffic light' --vocabulary other.json --name rival --place 1,1"
        " --radius 50 --deadline 20 --interface desk > /dev/null; echo $?\n"
        "$W nearby subscribe 'traffic light' --vocabulary words.json --name car --place 1,1 --interface desk"
        " --cell-m 900 --seconds 30; echo $?\nkill $light"
    )
    done = _in_namespace(script, folder)
    another = (
        "error: vocabulary of light: found another meaning of 'traffic light' than here,"
        " allowed is one meaning for each event type"
    )
    cells = "error: cells of light: found another size than here, allowed is one --cell-m for all nodes of a deployment"
    assert (done.stdout.split(), done.stderr.splitlines()) == (["2", "2", "2"], [another, another, cells])


@NEEDS_NAMESPACES
def test_a_broker_that_is_not_there_ends_the_command(folder: Path) -> None:
    """One sentence and exit code 1, as with `whimbrel publish`."""
    script = "$W nearby listen --vocabulary words.json --name post --place 1,1 --interface desk --host 127.0.0.1"
    done = _in_namespace(script, folder)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--place", "1,1", "--interface", "nope"], "interface nope cannot be used for IPv6 multicast: there is no"),
        (["--interface", "lo"], "Give one of --place, --fixes and --gpsd"),
        (["--place", "1,1", "--interface", "lo", "--filter", "status = 'red'"], "error 2102"),
        (["--place", "1,1", "--interface", "lo", "--filter", "colour == 3"], "allowed is status, distance_m"),
        (["--place", "91,1", "--interface", "lo"], "latitude"),
        (["--fixes", "words.json", "--interface", "lo"], "words.json: line 1"),
        (["--gpsd", "localhost:x", "--interface", "lo"], "port of gpsd"),
        (["--place", "1,1", "--interface", "lo", "--trust", "abc"], "64 hexadecimal digits"),
        (["--place", "1,1", "--interface", "lo", "--trust", f"{'ab' * 32}@soon"], "ISO 8601"),
        (["--place", "1,1", "--interface", "lo", "--name", "no/node"], "letters, digits"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    """And exit code 2, before anything is sent."""
    monkeypatch.chdir(folder)
    name = [] if "--name" in options else ["--name", "car"]
    monkeypatch.setattr(sys, "argv", ["whimbrel", "nearby", "subscribe", *LIGHT, *name, "--seconds", "1", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_fixes_are_read_and_moved_along(folder: Path) -> None:
    """Straight between two, standing after the last; lines that are none are named."""
    fixes = read_fixes(folder / "drive.jsonl")
    assert place_at(fixes, 10) == Place(53.3438, -6.2546)
    assert place_at(fixes, -1) == fixes[0][1]
    assert place_at(fixes, 99) == fixes[1][1]
    wrong = folder / "wrong.jsonl"
    for line in (
        '{"at_s": 0}',
        "{",
        '{"at_s": -1, "place": "1,1"}',
        '{"at_s": 0, "place": "1,1"}\n{"at_s": 0, "place": "1,1"}',
    ):
        wrong.write_text(line, encoding="utf-8")
        with pytest.raises(MalformedLineError, match=r"wrong\.jsonl: line"):
            read_fixes(wrong)


def test_the_walks_of_the_simulator_are_fixes(tmp_path: Path) -> None:
    """A node has the place of the device of its name."""
    walks = RandomWaypoint(nodes=3, area_m=300).walks(20, seed=1)
    lines = tmp_path / "walks.jsonl"
    lines.write_text("".join(position_lines(walks, every_s=5)), encoding="utf-8")
    fixes = read_fixes(lines, device="node-2")
    assert [at_s for at_s, _ in fixes] == [0, 5, 10, 15, 20]
    assert fixes != read_fixes(lines, device="node-1")
    with pytest.raises(InvalidValueError, match="a report of 'car'"):
        read_fixes(lines, device="car")


def test_gpsd_is_asked_as_its_protocol_says() -> None:
    """Reports with a position are fixes, reports without are none; an end is an error that says so."""
    reports = [
        {"class": "VERSION", "release": "3.25"},
        {"class": "TPV", "mode": 1},
        {"class": "TPV", "mode": 3, "lat": 53.5, "lon": -6.25},
    ]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readline()).startswith(b"?WATCH=")
        writer.write(b"".join(json.dumps(each).encode() + b"\n" for each in reports))
        await writer.drain()
        writer.close()

    async def ask() -> list[Place | None]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            places = fixes_from_gpsd("127.0.0.1", port)
            found = [await anext(places), await anext(places)]
            with pytest.raises(GpsdError, match="the connection ended"):
                await anext(places)
        return found

    async def ask_nobody() -> None:
        await anext(fixes_from_gpsd("127.0.0.1", 1))

    assert asyncio.run(ask()) == [None, Place(53.5, -6.25)]
    with pytest.raises(GpsdError, match=r"gpsd at 127\.0\.0\.1:1: "):
        asyncio.run(ask_nobody())
