"""The census of a campus, as recorded in a log: number of nodes, their memory, and the subscribers of each subject.

The administrative server (``carry.backbone``) publishes it under ``CENSUS_SUBJECT``; the pipeline plans copies from the
last census of a log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from whimbrel.errors import InvalidInputError, InvalidValueError, WhimbrelError, description_of
from whimbrel.model.bounds import INT32_MAX, name, whole

__all__ = ["BACKBONE", "CENSUS_SUBJECT", "CensusTotals", "read_census_totals"]

BACKBONE = "campus-backbone"
"""Root of the subjects of way-servers and the administrative server; samples never have these subjects."""
CENSUS_SUBJECT = f"{BACKBONE}/census"
_MAX_SUBSCRIBERS = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class CensusTotals:
    """Number of nodes, sample slots of all nodes together, and subscribers by subject."""

    nodes: int
    places: int
    subscribers: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole("nodes", self.nodes, 0, INT32_MAX)
        whole("places", self.places, 0, INT32_MAX)
        for subject, count in self.subscribers.items():
            name("subject", subject, max_bytes=65_535)
            whole("subscribers", count, 0, _MAX_SUBSCRIBERS)

    @property
    def slots_per_node(self) -> int:
        """Mean number of sample slots per node; 0 without nodes."""
        return self.places // self.nodes if self.nodes else 0


def read_census_totals(body: bytes) -> CensusTotals:
    """Return the census in the body of a publication; raise ``InvalidInputError`` if the body is not a census."""
    try:
        said = json.loads(body)
        return CensusTotals(nodes=said["nodes"], places=said["places"], subscribers=said["subscribers"])
    except InvalidInputError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, WhimbrelError) as error:
        raise InvalidValueError("census", description_of(body), f"JSON of its form ({type(error).__name__})") from None
