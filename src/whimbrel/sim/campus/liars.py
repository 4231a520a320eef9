"""A carrier that lies: the worst neighbour against which the rule of sight is tested."""

from __future__ import annotations

from whimbrel.carry.hello import Entry, Hello, Message, Request, SampleId
from whimbrel.carry.node import Carrier, Step
from whimbrel.model.bounds import INT64_MAX

__all__ = ["Liar"]


class Liar(Carrier):
    """A carrier that claims a newer sample of every topic, with copies to give, and never answers a request for one.

    Apart from that it publishes, carries and retrieves as all others do, so that a world with a liar and one without
    have the same samples.
    """

    topics: int = 0

    def hello(self) -> Hello:
        """Return a Hello with its stored samples and one false entry per topic."""
        lie = SampleId(INT64_MAX, self.address)
        lies = [Entry(topic, lie, has_copies=True) for topic in range(self.topics)]
        return Hello(tuple(sorted([*super().hello().entries, *lies])))

    def receive(self, sender: int, message: Message) -> list[Step]:
        """Handle *message* as a carrier does, but ignore requests for the samples it only claims to have."""
        if isinstance(message, Request) and message.id.published_at == INT64_MAX:
            return []
        return super().receive(sender, message)
