"""``whimbrel nearby status``: shows the groups (a producer and its receivers) around this place."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from whimbrel.cli.nearby.node import Role, run_node
from whimbrel.cli.nearby.options import NodeOptions
from whimbrel.cli.nearby.printing import say
from whimbrel.cli.options.groups import with_option_groups

if TYPE_CHECKING:  # other commands need not load sockets
    from whimbrel.nearby.frames.values import Frame
    from whimbrel.nearby.transport.daemon import NearbyDaemon

__all__ = ["status"]

_LISTENS_S = 3.0
_MAX_GROUPS = 10_000


@with_option_groups(name="status", seconds=_LISTENS_S)
def status(*, node: NodeOptions) -> None:
    """Listen for a while and print the groups around this place: producer, area, members (receivers).

    Example: whimbrel nearby status --vocabulary words.json --place 53.3438,-6.2546 --interface wlan0
    """
    from whimbrel.model.place import distance_m
    from whimbrel.nearby.frames.values import Beacon

    beacons: dict[tuple[str, str], Beacon] = {}

    def hear(frame: Frame) -> None:
        if isinstance(frame, Beacon) and len(beacons) < _MAX_GROUPS:
            beacons[frame.group] = frame

    async def work(daemon: NearbyDaemon, stack: AsyncExitStack) -> None:
        del stack
        await asyncio.sleep(node.seconds or _LISTENS_S)
        here = daemon.node.motion.place
        for (producer, subject), beacon in sorted(beacons.items()):
            away_m = None if here is None else round(distance_m(here, beacon.place), 1)
            said = {
                "producer": producer,
                "type": subject,
                "radius_m": beacon.area.radius_m,
                "moves": beacon.moves,
                "members": beacon.view.size,
                "distance_m": away_m,
                "signed": beacon.key is not None,
            }
            text = f"{subject} by {producer}: {away_m} m away, good for {beacon.area.radius_m:g} m, "
            say(said, text + f"{beacon.view.size} members", as_json=node.as_json)
        if not beacons:
            say({"groups": 0}, "no groups here", as_json=node.as_json)

    # The command ends after listening, so the node itself has no time limit.
    run_node(replace(node, seconds=None), Role(is_relay=False, hears_all=True), work, hear=hear)
