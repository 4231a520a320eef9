"""A stream plans copies from the last census of a campus in the log, as a batch run does, and again when it changes."""

from __future__ import annotations

import json
from pathlib import Path

from stream_rig import StreamRig, forget

from whimbrel.log.writer import LogWriter
from whimbrel.model.census import CENSUS_SUBJECT
from whimbrel.model.notification import Notification
from whimbrel.model.replicas import plan
from whimbrel.pipeline.files.delta import read
from whimbrel.pipeline.plans import StreamPlan

HOUR_US = 3_600 * 1_000_000
NOW = 1_800_000_000_000_000
LAST = {"town": 1_000_000}


class Town:
    """A broker's log, and a stream that follows it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._at = folder, NOW - 100 * HOUR_US
        self._open()

    def _open(self) -> None:
        self._writer = LogWriter(self._folder / "log", "town")
        self._writer.open()

    def publish(self, subject: str, body: bytes = b"", *, hours: int = 0) -> None:
        """Publish something, so many hours later."""
        self._at += 1 + hours * HOUR_US
        each = Notification(
            node="town", seq=self._writer.next_seq, published_at=self._at, subject=subject, publisher="admin", body=body
        )
        self._writer.append(each)

    def publish_census(self, nodes: int, places: int, *, hours: int = 0, **subscribers: int) -> None:
        """Publish a merged census, with subscribers by topic."""
        said = {f"campus/{name}": count for name, count in subscribers.items()}
        body = json.dumps({"at": 1, "nodes": nodes, "places": places, "subscribers": said}).encode()
        self.publish(CENSUS_SUBJECT, body, hours=hours)

    def planned(self, **given: int | bool) -> dict[str, int]:
        """Return the plan after the stream has taken what is new, in a worker that remembers nothing."""
        forget()
        self._writer.close()
        self._open()
        stream = StreamPlan(replicas_for="campus/#", **given)  # type: ignore[arg-type] # by name
        StreamRig(log=self._folder / "log", out=self._folder / "out", plan=stream, now=NOW).take(LAST)
        return {row["subject"]: row["replicas"] for row in read(self._folder / "out", "replicas").to_pylist()}


def test_a_stream_follows_the_census(tmp_path: Path) -> None:
    """Nodes, memory and subscribers are those of the last one; what is not one is passed over."""
    town = Town(tmp_path)
    town.publish("campus/quiet", b"x")
    town.publish_census(4, 40, lunch=3, news=1)
    assert town.planned() == plan({"campus/quiet": 0, "campus/lunch": 3, "campus/news": 1}, nodes=4, slots_per_node=10)
    town.publish("home/kitchen", b"x", hours=1)
    assert (
        town.planned()["campus/lunch"]
        == plan({"campus/quiet": 0, "campus/lunch": 3, "campus/news": 1}, nodes=4, slots_per_node=10)["campus/lunch"]
    ), "it is remembered, although this batch has none"
    town.publish_census(20, 100, lunch=3, news=16, hours=1)
    town.publish(CENSUS_SUBJECT, b"not a census")
    assert town.planned() == plan({"campus/quiet": 0, "campus/lunch": 3, "campus/news": 16}, nodes=20, slots_per_node=5)


def test_memory_that_was_given_goes_before_the_census(tmp_path: Path) -> None:
    """``--nodes`` and ``--slots``; subscribers are counted as the census has them all the same."""
    town = Town(tmp_path)
    town.publish_census(4, 40, lunch=3, news=1)
    wanted = plan({"campus/lunch": 3, "campus/news": 1}, nodes=50, slots_per_node=2)
    assert town.planned(nodes=50, slots_per_node=2, takes_census=False) == wanted
