"""A street of network namespaces: run as ``unshare -Urnm python nearby_street.py SCENARIO``; prints JSON.

Each node has a namespace of its own with one interface on one bridge. All daemons live in this process: a socket is of
the namespace in which it was made. Range is made in user space (``Reach``), and so is loss unless the kernel has netem,
which is tried, not assumed; the scenario tells which it was.
With ``loopback`` as a second argument the nodes have UDP sockets on ::1 instead, and what multicast would do is done
by ``LoopbackLink``: for machines where nobody may make namespaces.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

from whimbrel.model.place import Place, Plane, Point
from whimbrel.multicast.loopback import LoopbackLink
from whimbrel.nearby.frames.values import Beacon, Event, Frame
from whimbrel.nearby.group.outputs import Deliver, Note, NoteKind
from whimbrel.nearby.group.subscriptions import NearbySubscription
from whimbrel.nearby.node import Node
from whimbrel.nearby.transport.daemon import NearbyDaemon, Reach, monotonic_us
from whimbrel.nearby.transport.multicast import PORT, MulticastSocket
from whimbrel.nearby.vocabulary import Vocabulary

WORDS = Vocabulary.of(
    {
        "traffic light": {"status": "string"},
        "ambulance": {"siren": "int32"},
        "A": {"value": "int32"},
        "B": {"value": "int32"},
    }
)
PLANE = Plane(Place(53.3438, -6.2546))
PAUSE_US = 50_000
"""A busy machine may pause between the daemon's last look at its clock and ours."""
CLONE_NEWNET = 0x40000000
IS_LOOPBACK = sys.argv[2:] == ["loopback"]
LIBC = ctypes.CDLL(None, use_errno=True)


def shell(text: str) -> None:
    """Run commands that set up the network."""
    subprocess.run(["sh", "-ec", text], check=True, capture_output=True)


def enter(path: Path) -> None:
    """Be in the network namespace at *path* from now on."""
    with path.open("rb") as namespace:
        if LIBC.setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {path}")


def build(*names: str) -> None:
    """Make a bridge, and a namespace with one interface on it for each of *names*."""
    shell("mount -t tmpfs tmpfs /run; ip link add br0 type bridge mcast_snooping 0; ip link set br0 up")
    for number, name in enumerate(names):
        shell(
            f"ip netns add {name}; ip link add v{number} type veth peer name eth0 netns {name};"
            f"ip link set v{number} master br0 up;"
            f"ip netns exec {name} sh -c 'echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad';"
            f"ip -n {name} link set lo up; ip -n {name} link set eth0 up"
        )
    deadline = time.monotonic() + 10
    for name in names:
        _await_address(name, deadline)


def make_loss(names: Iterable[str], share: float) -> tuple[str, float]:
    """Let every node lose this share of what it would hear; tell who does it, and what is left to user space.

    With netem the kernel does it, on the bridge's port of each node, so that each node loses frames of its own.
    """
    if not IS_LOOPBACK and all(_tc(f"v{number}", share) for number, _ in enumerate(names)):
        return "netem", 0.0
    return "user space", share


def _tc(port: str, share: float) -> bool:
    command = ["tc", "qdisc", "replace", "dev", port, "root", "netem", "loss", f"{share:.0%}"]
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def _await_address(name: str, deadline: float) -> None:
    while time.monotonic() < deadline:
        found = subprocess.run(["ip", "-n", name, "-6", "addr", "show", "dev", "eth0"], capture_output=True, check=True)
        if b"fe80" in found.stdout and b"tentative" not in found.stdout:
            return
        time.sleep(0.05)
    raise TimeoutError(f"{name} has no link-local address")


def _write(path: Path, tree: dict[str, list[str]]) -> None:
    path.write_text(json.dumps(tree), encoding="utf-8")


class Street:
    """Daemons, each in its namespace."""

    def __init__(self) -> None:
        self.links: list[LoopbackLink] = []
        self.reach = Path(tempfile.mkdtemp()) / "reach.json"
        self.daemons: dict[str, NearbyDaemon] = {}
        self.delivered: dict[str, list[tuple[str, object]]] = {}
        self.notes: dict[str, list[Note]] = {}
        self.late: list[int] = []
        self.published: dict[str, int] = {}
        self._home = Path("/proc/self/ns/net").open("rb")  # noqa: SIM115 # kept to come back
        self.busy_s: dict[str, float] = {}

    async def add(self, name: str, x_m: float, *, wants: dict[str, str | None] | None = None, **more: object) -> None:
        """Start a daemon."""
        reach_path, loss = more.pop("reach", None), more.pop("loss", 0.0)
        node = Node(name, vocabulary=WORDS, **more)  # type: ignore[arg-type] # it checks
        for subject, text in (wants or {}).items():
            node.subscribe(NearbySubscription(subject=subject, filter_text=text))
        link = self._link(name)
        self.delivered[name], self.notes[name] = [], []
        daemon = NearbyDaemon(
            node,
            link,
            subjects=tuple(wants or ()),
            reach=Reach(name, path=reach_path, loss=loss, random=Random(name)),  # type: ignore[arg-type] # they check
            deliver=lambda found: self._take(name, found),
            note=self.notes[name].append,
        )
        node.move(PLANE.place(Point(x_m, 0)), now=monotonic_us())
        await daemon.open()
        self.daemons[name] = daemon

    def _link(self, name: str) -> MulticastSocket:
        if IS_LOOPBACK:
            return LoopbackLink(self.links)
        enter(Path("/run/netns") / name)
        try:
            return MulticastSocket("eth0", port=PORT)
        finally:
            LIBC.setns(self._home.fileno(), CLONE_NEWNET)

    def _take(self, name: str, found: Deliver) -> None:
        self.delivered[name].append((found.event.origin, next(iter(found.event.attributes.values()))))
        if monotonic_us() - self.published[str(found.event.id)] >= found.event.deadline_us + PAUSE_US:
            self.late.append(found.event.seq)
        if name in self.busy_s:
            time.sleep(self.busy_s[name])  # an application that takes its time

    def move(self, name: str, x_m: float) -> None:
        """Give a node a fix."""
        self.daemons[name].move(PLANE.place(Point(x_m, 0)))

    def announce(self, name: str, subject: str, **more: object) -> None:
        """Let a node announce."""
        settings = {"radius_m": 200.0, "deadline_us": 500_000, "hops": 1, **more}
        _, outputs = self.daemons[name].node.announce(subject, now=monotonic_us(), **settings)  # type: ignore[arg-type] # it checks
        self.daemons[name].perform(outputs)

    def publish(self, name: str, subject: str, **values: object) -> Event:
        """Let a node publish."""
        daemon = self.daemons[name]
        event, outputs = daemon.node.publish(subject, values, now=monotonic_us())
        self.published[str(event.id)] = monotonic_us()
        daemon.perform(outputs)
        return event

    def kinds(self, name: str) -> list[str]:
        """Return what a node reported."""
        return [note.kind.value for note in self.notes[name]]

    async def until(self, is_so: Callable[[], bool], seconds: float = 8.0) -> None:
        """Wait until *is_so*, at most so long."""
        end = time.monotonic() + seconds
        while not is_so() and time.monotonic() < end:  # noqa: ASYNC110 # it looks at many daemons from outside
            await asyncio.sleep(0.02)


async def figures() -> dict[str, object]:
    """Figure 2 cell for cell, and Figure 3b."""
    street = Street()
    await street.add("light", 0)
    await street.add("car", -400, wants={"traffic light": "approaching == 1"})
    street.announce("light", "traffic light", radius_m=160, centre=PLANE.place(Point(20, 30)))
    table: dict[str, object] = {}
    for stage, stops in (("s1", (-400, -398)), ("s2", (-102, -100)), ("s3", (58, 60)), ("s4", (180, 182))):
        for x_m in stops:
            street.move("car", x_m)
            await asyncio.sleep(0.05)
        if stage in {"s2", "s3"}:
            await street.until(lambda: "car" in street.daemons["light"].node.members("traffic light"))
        notes, delivered = len(street.notes["car"]), len(street.delivered["car"])
        street.publish("light", "traffic light", status="red")
        if stage in {"s2", "s3"}:
            await street.until(lambda notes=notes: len(street.notes["car"]) > notes)  # type: ignore[misc] # bound now
        await asyncio.sleep(0.15)
        kinds = [note.kind for note in street.notes["car"][notes:]]
        table[stage] = [NoteKind.PROPAGATED in kinds, len(street.delivered["car"]) > delivered]
    wants: dict[str, dict[str, str | None]] = {
        "c1": {"A": "value == 1"},
        "c2": {"A": "value == 2", "B": "value == 3"},
        "c3": {"B": "value == 3"},
    }
    for number, (name, wanted) in enumerate(wants.items()):
        await street.add(name, 10 * number, wants=wanted)
    for subject in "AB":
        street.announce("light", subject)
    node = street.daemons["light"].node
    await street.until(lambda: len(node.members("A")) == len(node.members("B")) == 2)
    for subject, value in (("A", 1), ("A", 2), ("B", 3), ("B", 4)):
        street.publish("light", subject, value=value)
    await street.until(lambda: sum(len(street.delivered[name]) for name in wants) == 4)
    await asyncio.sleep(0.2)
    return {
        "figure 2": table,
        "members": {subject: sorted(node.members(subject)) for subject in "AB"},
        "figure 3": {name: [value for _, value in street.delivered[name]] for name in wants},
    }


async def partition() -> dict[str, object]:
    """Three vehicles, a light and an ambulance; loss, and a partition that heals."""
    street = Street()
    reach = street.reach
    _write(reach, {})
    wants: dict[str, str | None] = {"traffic light": None, "ambulance": "siren == 1"}
    nodes_here = ("light", "ambulance", "car1", "car2", "car3")
    lost_by, loss = make_loss(nodes_here, 0.2)
    for number, name in enumerate(nodes_here):
        await street.add(name, 10 * number, wants=wants if name.startswith("car") else {}, reach=reach, loss=loss)
    street.announce("light", "traffic light", deadline_us=20_000_000)
    street.announce("ambulance", "ambulance", moves=True, deadline_us=20_000_000)
    nodes = [street.daemons[name].node for name in ("light", "ambulance")]
    await street.until(lambda: len(nodes[0].members("traffic light")) == len(nodes[1].members("ambulance")) == 3)
    for number in range(5):
        street.publish("light", "traffic light", status=str(number))
    street.publish("ambulance", "ambulance", siren=1)
    cars = ("car1", "car2", "car3")
    await street.until(lambda: all(len(street.delivered[car]) == 6 for car in cars))
    before = {car: sorted(map(str, street.delivered[car])) for car in cars}
    _write(reach, {name: side for side in (["light", "car1", "car2"], ["ambulance", "car3"]) for name in side})
    await street.until(lambda: "car3" not in nodes[0].members("traffic light"), 12)
    for number in range(5, 8):
        street.publish("light", "traffic light", status=str(number))
    await street.until(lambda: all(len(street.delivered[car]) == 9 for car in cars[:2]))
    cut_off = [value for _, value in street.delivered["car3"]]
    _write(reach, {})
    await street.until(lambda: ("light", "7") in street.delivered["car3"], 12)
    await street.until(lambda: "car3" in nodes[0].members("traffic light"))
    await street.until(lambda: "member missed" in street.kinds("light"))
    return {
        "lost by": lost_by,
        "before": before,
        "cut off": len(cut_off),
        "healed": [value for _, value in street.delivered["car3"]][-1],
        "twice": [car for car in cars if len(set(street.delivered[car])) != len(street.delivered[car])],
        "missed": sum(note.count for note in street.notes["car3"] if note.kind is NoteKind.MISSED),
        "reported": sum(
            note.count
            for note in street.notes["light"]
            if note.kind is NoteKind.MEMBER_MISSED and note.member == "car3"
        ),
        "light saw": sorted({kind for kind in street.kinds("light") if kind.startswith("member")}),
    }


async def loss() -> dict[str, object]:
    """Which share of 800 beacons a car hears that should lose one in five; without repeats."""
    street = Street()
    lost_by, share = make_loss(("light", "car"), 0.2)
    await street.add("light", 0)
    await street.add("car", 10, wants={"A": None}, loss=share)
    street.announce("light", "A", hops=0)
    car = street.daemons["car"]
    heard: set[int] = set()  # one beacon in five comes twice: once more for nodes with other cells

    def hear(frame: Frame) -> None:
        assert isinstance(frame, Beacon)
        heard.add(frame.seq)

    car._hear = hear
    for _ in range(400):
        street.daemons["light"].perform(street.daemons["light"].node.unannounce("A", now=monotonic_us()))
        street.announce("light", "A", hops=0)
        await asyncio.sleep(0.002)
    await asyncio.sleep(0.2)
    return {"lost by": lost_by, "heard": len(heard)}


async def load() -> dict[str, object]:
    """Deadlines under load: an application that is too slow gets nothing late; both sides count what expired."""
    street = Street()
    await street.add("light", 0)
    await street.add("car", 10, wants={"A": None})
    street.announce("light", "A", deadline_us=400_000, hops=0)
    node = street.daemons["light"].node
    await street.until(lambda: len(node.members("A")) == 1)
    street.busy_s["car"] = 0.02
    for number in range(60):
        street.publish("light", "A", value=number)
    await street.until(lambda: "member expired" in street.kinds("light"), 4)
    await asyncio.sleep(1.2)
    reported = sum(note.count for note in street.notes["light"] if note.kind is NoteKind.MEMBER_EXPIRED)
    garbage = street.daemons["car"]
    for size in range(0, 1_400, 7):
        garbage.receive(Random(size).randbytes(size))
    return {
        "delivered": len(street.delivered["car"]),
        "expired": street.kinds("car").count("expired"),
        "reported": reported,
        "late": len(street.late),
        "malformed": garbage.node.counts["malformed"],
    }


SCENARIOS = {
    "loss": (loss, ("light", "car")),
    "figures": (figures, ("light", "car", "c1", "c2", "c3")),
    "partition": (partition, ("light", "ambulance", "car1", "car2", "car3")),
    "load": (load, ("light", "car")),
}

if __name__ == "__main__":
    scenario, names = SCENARIOS[sys.argv[1]]
    if not IS_LOOPBACK:
        build(*names)
    print(json.dumps(asyncio.run(scenario())))  # noqa: T201 # read by the test
