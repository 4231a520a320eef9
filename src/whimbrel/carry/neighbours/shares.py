"""Shares: which hosts have had copies of a sample from this node.

A host is the machine that a datagram came from, as its transport knows it; over UDP that is the sender's IPv6 address.
The address of a node is only a field of a frame, and one host can invent as many as it likes. If each invented address
could take half of the copies that are left and acknowledge them, a few addresses would leave the giver with one copy.

Rule: a host gets copies of a sample from this node once, whichever of its addresses asks. Copies that come back free
the share again.
Rule: nodes on the giver's own machine have no host, and are not limited: they are trusted as much as the giver.
Rule: only shares of stored samples are remembered, and each has taken at least one copy, so L bounds their number.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from whimbrel.carry.hello import SampleId

__all__ = ["OWN_HOST", "HostShares", "SampleName"]

OWN_HOST = ""
"""The host of a node on the same machine."""

SampleName = tuple[int, SampleId]
"""Topic and id of a sample."""


class HostShares:
    """The hosts that hold a share of each stored sample."""

    def __init__(self) -> None:
        self._hosts: dict[SampleName, set[str]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._hosts.values()))

    def has(self, host: str, sample: SampleName) -> bool:
        """Return whether *host* has had its share of *sample*."""
        return host in self._hosts.get(sample, ())

    def add(self, host: str, sample: SampleName) -> None:
        """Note that *host* is given copies of *sample*."""
        if host != OWN_HOST:
            self._hosts.setdefault(sample, set()).add(host)

    def free(self, host: str, sample: SampleName) -> None:
        """Note that the copies of *sample* that *host* was given have come back."""
        hosts = self._hosts.get(sample, set())
        hosts.discard(host)
        if not hosts:
            self._hosts.pop(sample, None)

    def keep_only(self, samples: AbstractSet[SampleName]) -> None:
        """Forget the shares of all samples but *samples*."""
        self._hosts = {sample: hosts for sample, hosts in self._hosts.items() if sample in samples}
