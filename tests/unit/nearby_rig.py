"""A street: nodes of nearby groups joined in memory, with a radio that loses nothing and takes a millisecond."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from whimbrel.model.place import Place, Plane, Point
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.frames.values import Frame
from whimbrel.nearby.frames.wire import decode, encode
from whimbrel.nearby.group.outputs import Deliver, Note, NoteKind, Output, Send
from whimbrel.nearby.node import Node
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
SECOND, MS = 1_000_000, 1_000
AIR_US = 1_000


def at(x_m: float, y_m: float = 0.0) -> Place:
    """Return the place so many metres east and north of the light."""
    return PLANE.place(Point(x_m, y_m))


class Street:
    """Nodes that hear each other where *hears* says so; every frame goes through its bytes."""

    def __init__(self, *, hears: Callable[[str, str], bool] = lambda _a, _b: True) -> None:
        self.nodes: dict[str, Node] = {}
        self.now = 0
        self.hears = hears
        self.sent: list[tuple[str, Frame]] = []
        self.notes: list[tuple[str, Note]] = []
        self.delivered: list[tuple[str, Deliver]] = []
        self._air: list[tuple[int, str, bytes]] = []

    def add(self, name: str, place: Place | None, **settings: object) -> Node:
        """Put a node on the street."""
        settings.setdefault("deployment", Deployment())
        node = self.nodes[name] = Node(name, vocabulary=WORDS, **settings)  # type: ignore[arg-type] # it checks
        node.move(place, now=self.now)
        return node

    def do(self, name: str, outputs: Iterable[Output]) -> None:
        """Perform what the node *name* gave."""
        for each in outputs:
            if isinstance(each, Send):
                self.sent.append((name, each.frame))
                data = encode(each.frame)
                self._air += [(self.now + AIR_US, to, data) for to in self.nodes if to != name and self.hears(name, to)]
            else:
                self.notes.append((name, each))

    def run(self, seconds: float) -> None:
        """Let time pass; applications take what they get at once."""
        end = self.now + round(seconds * SECOND)
        while True:
            due = [(node.next_due, name) for name, node in self.nodes.items()]
            moments = [moment for moment, _ in due if moment is not None] + [moment for moment, _, _ in self._air]
            if not moments or min(moments) > end:
                break
            self.now = max(self.now, min(moments))
            arrived = [each for each in self._air if each[0] <= self.now]
            self._air = [each for each in self._air if each[0] > self.now]
            for _, to, data in arrived:
                self.do(to, self.nodes[to].receive(decode(data), now=self.now))
            for name, node in self.nodes.items():
                if node.next_due is not None and node.next_due <= self.now:
                    self.do(name, node.timer(now=self.now))
                self._deliver(name, node)
        self.now = end

    def _deliver(self, name: str, node: Node) -> None:
        while True:
            found, notes = node.take(now=self.now)
            self.do(name, notes)
            if found is None:
                return
            self.delivered.append((name, found))

    def move(self, name: str, place: Place | None) -> None:
        """Give a node a fix."""
        self.do(name, self.nodes[name].move(place, now=self.now))

    def publish(self, name: str, subject: str, **values: object) -> None:
        """Let a node publish."""
        self.do(name, self.nodes[name].publish(subject, values, now=self.now)[1])

    def announce(self, name: str, subject: str, *, radius_m: float = 200, hops: int = 0, **more: object) -> None:
        """Let a node announce."""
        more.setdefault("deadline_us", 500 * MS)
        node = self.nodes[name]
        made = node.announce(subject, radius_m=radius_m, hops=hops, now=self.now, **more)  # type: ignore[arg-type] # it checks
        self.do(name, made[1])

    def kinds(self, name: str) -> list[NoteKind]:
        """Return what the node *name* reported, in order."""
        return [note.kind for who, note in self.notes if who == name]

    def values(self, name: str) -> list[object]:
        """Return the events delivered at *name*: the value of their one parameter."""
        return [next(iter(each.event.attributes.values())) for who, each in self.delivered if who == name]
