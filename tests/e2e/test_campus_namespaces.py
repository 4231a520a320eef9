"""A campus in network namespaces: Figure 1b message for message, and two way-servers with an administrative server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.e2e.test_campus_commands import NEEDS_NAMESPACES, PATIENCE_S, in_namespace, running_in_namespace

from whimbrel.carry.application import Campus, NoNodeError
from whimbrel.carry.memory import read_memory

FIGURE = Path(__file__).with_name("campus_figure.py")
LECTURES, AT = 0x00F1, 45_353
"""The topic and the sample of Figure 1b."""

RETRIEVAL = f"""
mount -t tmpfs tmpfs /run
printf '0x00F1 lectures\\n' > topics
ip netns add left; ip netns add right
ip -n left link add eth0 type veth peer name eth0 netns right
for each in left right; do ip -n $each link set eth0 up; done
for each in left right; do
    until ip -n $each -6 addr show dev eth0 -tentative | grep -q fe80; do sleep 0.1; done
done
ip netns exec left {sys.executable} {FIGURE} listen > frames &
until grep -q listening frames; do sleep 0.1; done
ip netns exec left {sys.executable} {FIGURE} node node-1 {AT} 2>&1 & one=$!
ip netns exec right {sys.executable} {FIGURE} node node-2 {AT} 2>&1 & two=$!
until test -S node-1/campus.sock && test -S node-2/campus.sock; do sleep 0.1; done
whimbrel campus subscribe lectures --data node-2 --count 1 --seconds {PATIENCE_S} > got & waiting=$!
until whimbrel campus status --data node-2 --json | grep -q lectures; do sleep 0.1; done
whimbrel campus publish lectures 'in room 2' --data node-1 > published
wait $waiting
until grep -q Acknowledgement frames; do sleep 0.1; done
ip netns exec right {sys.executable} {FIGURE} drain > drained
kill $one $two; wait $one $two
cat got
"""


@NEEDS_NAMESPACES
def test_figure_1b_message_for_message_in_two_namespaces(tmp_path: Path) -> None:
    """Hello with {0x00F1, 45353}, the request for it, the data: as a third one hears it on the link.

    Afterwards eight invented addresses on the machine of the second node get no copies.
    """
    done = in_namespace(RETRIEVAL, tmp_path, "-m")
    assert done.stdout.splitlines()[-1:] == ["lectures in room 2 (unsynchronised)"], done.stdout + done.stderr
    said = [json.loads(line) for line in (tmp_path / "frames").read_text(encoding="utf-8").splitlines()[1:]]
    name = [LECTURES, AT, 1]
    about = [each for each in said if name in each[2] or each[2] == name]
    told = [each for each, _ in groupby(about)][:4]
    assert told[:2] == [[1, "Hello", [name]], [2, "Request", name]]
    assert (told[2][:3], told[2][3][-9:]) == ([1, "Answer", name], "in room 2")
    assert told[3] == [2, "Acknowledgement", name], "ours: the other also carries, and copies are acknowledged"
    drained = (tmp_path / "drained").read_text(encoding="utf-8").split()
    assert drained == ["Refusal"] * 8, "their machine has had its share: that of the node which retrieved the sample"
    memory = read_memory(tmp_path / "node-1" / "memory")
    assert memory is not None
    assert [copy.copies for copy in memory.stored] == [4]


GATES = """
exec 2>&1
mount -t tmpfs tmpfs /run
printf '0x00F1 lectures\nnews\n' > topics
for bridge in north south yard wire; do
    ip link add $bridge type bridge mcast_snooping 0; ip link set $bridge up
done
ip addr add 10.0.0.1/24 dev wire; ip link set lo up
join() {  # namespace, name of its interface, bridge
    ip link add $1-$2 type veth peer name $2 netns $1
    ip link set $1-$2 master $3 up
    ip -n $1 link set $2 up
}
for each in gate1 gate2 walker late; do ip netns add $each; done
join gate1 radio north; join gate2 radio south; join walker radio north; join late radio yard
join gate1 wire wire; join gate2 wire wire
ip -n gate1 addr add 10.0.0.2/24 dev wire; ip -n gate2 addr add 10.0.0.3/24 dev wire
key=$(whimbrel campus key campus.key)
whimbrel serve --host 10.0.0.1 --port 1883 --insecure --data broker > broker.notes 2>&1 & pids=$!
until grep -q 1883 broker.notes; do sleep 0.1; done
for each in gate1 gate2 walker late; do
    until ip -n $each -6 addr show dev radio -tentative | grep -q fe80; do sleep 0.1; done
done
whimbrel campus admin --data admin --host 10.0.0.1 --topics topics --every 0.2s > admin.notes 2>&1 & pids="$pids $!"
for each in 1 2; do
    ip netns exec gate$each whimbrel campus way-server --name gate$each --campus-key campus.key --data gate$each \\
        --interface radio --host 10.0.0.1 --census 0.2s --hello 0.2s > gate$each.notes 2>&1 & pids="$pids $!"
done
for each in walker late; do
    ip netns exec $each whimbrel campus node --data $each --key $key --hello 0.2s > $each.notes 2>&1 & pids="$pids $!"
done
while read -r bridge; do ip link set walker-radio nomaster; ip link set walker-radio master $bridge; done
kill $pids; wait
"""


@contextmanager
def the_gates(folder: Path) -> Iterator[Callable[[str], None]]:
    """Run the broker, the admin, two gates, a walker and a node that meets no gate; yield how the walker moves."""
    with running_in_namespace(GATES, folder, "-m") as process:
        commands = process.stdin
        assert commands is not None

        def walk(bridge: str) -> None:
            commands.write(f"{bridge}\n")
            commands.flush()

        try:
            yield walk
        finally:
            commands.close()
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


@NEEDS_NAMESPACES
def test_two_way_servers_and_an_admin_in_namespaces(tmp_path: Path) -> None:
    """Two gates on one backbone and a walker: it counts once, and carries the plan to a node that met no gate."""

    async def status_of(name: str) -> dict[str, Any]:
        with suppress(NoNodeError):
            async with Campus(tmp_path / name) as campus:
                return await campus.status()
        return {}

    async def says(name: str, member: str, is_said: Callable[[Any], bool]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not is_said((status := await status_of(name)).get(member)):  # noqa: ASYNC110 # others' state
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{name}: {member}: {status}") from None
        return status

    async def plans(name: str, subscribers: int) -> None:
        """Wait until a node knows how many subscribers the topic of Figure 1b has."""
        found: dict[str, Any] = {}
        try:
            async with asyncio.timeout(PATIENCE_S):
                while found.get("lectures") != (LECTURES, subscribers):  # others' state
                    await asyncio.sleep(0.1)
                    with suppress(NoNodeError):  # it has not started yet
                        async with Campus(tmp_path / name) as campus:
                            found = {each.name: (each.id, each.subscribers) for each in await campus.topics()}
        except TimeoutError:
            raise AssertionError(f"{name}: {found}") from None

    async def act(walk: Callable[[str], None]) -> None:
        await says("gate1", "control_version", bool)
        await says("walker", "clock", lambda said: said == "set")
        async with Campus(tmp_path / "walker") as campus:
            await campus.subscribe("lectures")
        await says("gate1", "users", lambda said: said == 1)
        walk("south")
        await says("gate2", "users", lambda said: said == 1)
        assert (await says("admin", "users", bool))["users"] == 1, "seen at two gates, it counts once"
        for each in ("gate1", "gate2", "walker"):
            await plans(each, 1)
        walk("yard")
        await plans("late", 1)
        version = (await status_of("late"))["control_version"]
        for each in ("gate1", "gate2", "walker"):
            status = await says(each, "control_version", lambda said: said is not None and said >= version)
            assert status["control_version"] == version, "both gates tell the same, and the walker has carried it"
        assert (await status_of("late"))["clock"] == "own", "the time comes from way-servers, never from neighbours"

    with the_gates(tmp_path) as walk:
        asyncio.run(act(walk))
