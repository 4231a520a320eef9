"""``whimbrel campus``: the how-to as a reader would run it, nodes in namespaces, and bad input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.test_nearby_street import _has_namespaces

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "a-campus-on-your-desk.md"
FENCE = re.compile(r"^```(?P<language>[a-z]*)[ ]?(?P<title>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = list(FENCE.finditer(PAGE.read_text(encoding="utf-8")))
PATIENCE_S = 300
"""Only a script that hangs takes so long: on a machine with a load of 13 a campus needs 90 s for its first steps."""
NEEDS_NAMESPACES = pytest.mark.skipif(not _has_namespaces(), reason="network namespaces are not permitted here")


def running_in_namespace(script: str, folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start *script* in a network namespace of its own, with ``whimbrel`` on the path."""
    command = folder / "bin" / "whimbrel"
    if not command.exists():
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m whimbrel "$@"\n', encoding="utf-8")
        command.chmod(0o755)
    return subprocess.Popen(
        ["unshare", "-Urnpf", "--kill-child", *options, "sh", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def in_namespace(script: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run *script* in a network namespace of its own, with ``whimbrel`` on the path."""
    with running_in_namespace(script, folder, *options) as process:
        try:
            said, notes = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, said, notes)


@NEEDS_NAMESPACES
def test_the_campus_on_your_desk_is_as_the_page_says(tmp_path: Path) -> None:
    """Every line of the page's output; the node's log is a log like any other."""
    (script,) = (block["text"] for block in BLOCKS if block["title"] == "desk.sh")
    done = in_namespace(script, tmp_path)
    expected = [block["text"] for block in BLOCKS if block["language"] == "text"]
    assert done.stdout in expected, done.stdout + done.stderr
    logged = (tmp_path / "log.out").read_text(encoding="utf-8")
    assert "campus-" in logged


TWO_NAMESPACES = f"""
mount -t tmpfs tmpfs /run
ip netns add other
ip link add eth0 type veth peer name eth0 netns other
ip link set eth0 up; ip -n other link set eth0 up
until ip -6 addr show dev eth0 -tentative | grep -q fe80; do sleep 0.1; done
until ip -n other -6 addr show dev eth0 -tentative | grep -q fe80; do sleep 0.1; done
whimbrel campus node --data one --log-format json 2> one.notes & one=$!
ip netns exec other whimbrel campus node --data two 2> two.notes & two=$!
until grep -q started one.notes && grep -q started two.notes; do sleep 0.1; done
whimbrel campus publish lunch pasta --data one --json > published
ip netns exec other whimbrel campus subscribe lunch --data two --count 1 --seconds {PATIENCE_S} --json
kill $one $two
wait $one; echo $?
wait $two; echo $?
"""


@NEEDS_NAMESPACES
def test_two_namespaces_without_a_way_server(tmp_path: Path) -> None:
    """Publish on one, subscribe on the other; each finds its only interface, and SIGTERM ends both with 0."""
    done = in_namespace(TWO_NAMESPACES, tmp_path, "-m")
    got, *codes = done.stdout.splitlines()
    published = json.loads((tmp_path / "published").read_text(encoding="utf-8"))
    said = json.loads(got)
    assert (said["topic"], said["text"], said["unsynchronised"]) == ("lunch", "pasta", True), done.stderr
    assert said["sample"] == published["published"]
    assert codes == ["0", "0"]
    lines = [json.loads(line) for line in (tmp_path / "one.notes").read_text(encoding="utf-8").splitlines()]
    assert [line["event"] for line in lines] == ["campus node started", "campus node stopped"]


@NEEDS_NAMESPACES
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            "--interface lo",
            "interface lo cannot be used for IPv6 multicast: network is unreachable; allowed is one that is up and",
        ),
        ("", "interface: found none with an IPv6 link-local address, allowed is one: name it with --interface"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path: Path, options: str, sentence: str) -> None:
    """What was found and what is allowed, without a traceback; more of them are in tests/unit/test_cli_campus.py."""
    done = in_namespace(f"ip link set lo up; exec whimbrel campus node --data data {options}", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {sentence}")
    assert done.stderr.count("\n") == 1


LINE = f"""
mount -t tmpfs tmpfs /run
for bridge in left right; do ip link add $bridge type bridge mcast_snooping 0; ip link set $bridge up; done
join() {{
    ip netns add $1
    ip link add port-$1 type veth peer name eth0 netns $1
    ip link set port-$1 master $2 up
    ip -n $1 link set eth0 up
}}
join source left; join walker left; join sink right
sleep 2
for each in source walker sink; do
    ip netns exec $each whimbrel campus node --data $each --hello 0.2s 2> $each.notes &
    echo $! >> pids
done
until grep -q started source.notes && grep -q started walker.notes && grep -q started sink.notes; do sleep 0.1; done
ip netns exec sink whimbrel campus subscribe lunch --data sink --count 1 --seconds {PATIENCE_S} --json > sink.out &
waiting=$!
whimbrel campus publish lunch pasta --data source > published
until whimbrel campus status --data walker | grep -q copies; do sleep 0.5; done
ip link set port-walker nomaster
whimbrel campus status --data sink --json > before.json
ip link set port-walker master right
wait $waiting
whimbrel campus status --data sink --json > after.json
kill $(cat pids)
cat sink.out
"""


@NEEDS_NAMESPACES
def test_a_walker_carries_a_sample_between_nodes_that_never_meet(tmp_path: Path) -> None:
    """Three namespaces and two links: the walker leaves one link and comes to the other; it subscribes to nothing."""
    done = in_namespace(LINE, tmp_path, "-m")
    said = json.loads(done.stdout)
    assert (said["topic"], said["text"]) == ("lunch", "pasta"), done.stderr
    before, after = (
        json.loads((tmp_path / f"{each}.json").read_text(encoding="utf-8")) for each in ("before", "after")
    )
    assert (before["neighbours"], before["stored"]) == ([], [])
    assert len(after["neighbours"]) == 1, "the walker; never the source"
    assert after["neighbours"] != [said["publisher"]]
