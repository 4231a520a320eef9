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
from whimbrel.model.place import Place
from whimbrel.nearby.transport.fixes import GpsdError, fixes_from_gpsd, place_at, read_fixes
from whimbrel.sim.mobility.positions import position_lines
from whimbrel.sim.mobility.waypoint import RandomWaypoint

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "a-street-on-your-desk.md"
FENCE = re.compile(r"^```(?P<language>[a-z]*)[ ]?(?P<title>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = list(FENCE.finditer(PAGE.read_text(encoding="utf-8")))
NEEDS_NAMESPACES = pytest.mark.skipif(not _has_namespaces(), reason="nobody may make network namespaces here")
LIGHT = ["traffic light", "--vocabulary", "words.json"]


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


@NEEDS_NAMESPACES
def test_contradicting_vocabularies_end_the_command(folder: Path) -> None:
    """One sentence and exit code 2, not a node that silently hears nothing."""
    (folder / "other.json").write_text('{"traffic light": {"status": "int32"}}', encoding="utf-8")
    script = (
        "ip link add desk type veth peer name plug; ip link set desk up; ip link set plug up; sleep 2;"
        f"(sleep 6 | {sys.executable} -m whimbrel nearby announce 'traffic light' --vocabulary words.json --name light"
        " --place 1,1 --radius 100 --interface desk >/dev/null 2>&1 &)\n"
        f"{sys.executable} -m whimbrel nearby subscribe 'traffic light' --vocabulary other.json --name car --place 1,1"
        " --interface desk --seconds 20"
    )
    command = ["unshare", "-Urn", "sh", "-c", script]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "error: vocabulary of light: found \"another meaning of 'traffic light'\","
        " allowed is one meaning for each event type\n"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--place", "1,1", "--interface", "nope"], "interface nope cannot be used for IPv6 multicast: there is no"),
        (["--interface", "lo"], "allowed is one of --place, --fixes and --gpsd"),
        (["--place", "1,1", "--interface", "lo", "--filter", "status = 'red'"], "error 2102"),
        (["--place", "1,1", "--interface", "lo", "--filter", "colour == 3"], "allowed is status, distance_m"),
        (["--place", "91,1", "--interface", "lo"], "latitude"),
        (["--fixes", "words.json", "--interface", "lo"], "words.json: line 1"),
        (["--gpsd", "localhost:x", "--interface", "lo"], "port of gpsd"),
        (["--place", "1,1", "--interface", "lo", "--trust", "abc"], "64 hexadecimal digits"),
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
    with pytest.raises(InvalidValueError, match="reports of 'car'"):
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
