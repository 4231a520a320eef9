"""A carrier that lies: the worst neighbour that the rule of sight is tried with."""

from __future__ import annotations

from whimbrel.carry.hello import Entry, Hello, Message, Request, SampleId
from whimbrel.carry.node import Carrier, Step
from whimbrel.model.bounds import INT64_MAX

__all__ = ["Liar"]


class Liar(Carrier):
    """A carrier that names a newer sample of every topic, says that it has copies of it, and never answers for it.

    Apart from that it publishes, carries and retrieves as all others do, so that a world with a liar and one without
    have the same samples.
    """

    topics: int = 0

    def hello(self) -> Hello:
        """Return what it stores, and a lie about each topic."""
        lie = SampleId(INT64_MAX, self.address)
        lies = [Entry(topic, lie, has_copies=True) for topic in range(self.topics)]
        return Hello(tuple(sorted([*super().hello().entries, *lies])))

    def receive(self, sender: int, message: Message) -> list[Step]:
        """Do what a carrier does, but do not answer requests for what it does not have."""
        if isinstance(message, Request) and message.id.published_at == INT64_MAX:
            return []
        return super().receive(sender, message)
