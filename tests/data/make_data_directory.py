"""Make ``data-directory-N.tar.xz``: once, when a format changes; never again for the same N.

    python tests/data/make_data_directory.py N     # from the root of the repository

A broker holds one message for a session that is away, retains another, knows a policy that a device chose, where that
device was and how good its link, and cuts its log by two checkpoints. It is stopped, not killed.
"""

from __future__ import annotations

import asyncio
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.e2e.broker_process import BrokerProcess

from whimbrel.client import Client, Reporting
from whimbrel.log import layout

NODE = "node-1"
SETTINGS: dict[str, dict[str, object]] = {
    "log": {"segment_bytes": 65_536, "view_interval_s": 0.1, "retain_bytes": 150_000, "retain_free_bytes": 0},
    "mqtt": {"session_expiry_s": 4_000_000_000},
    "hold": {"ttl_s": 4_000_000_000},
    "sessions": {"device_expiry_s": 0},
}
YEARS_S = 3_000_000_000
POLICY = """if (device.Battery < 0.25 and m.pulse > 50) {
    state.Withheld = m.pulse;
    return NULL;
}
return m;
"""


async def live(broker: BrokerProcess) -> None:
    """Do what the folder is to remember."""
    kept = Client(port=broker.port, client_id="kept-subscriber", session_expiry_s=YEARS_S)
    phone = Client(
        port=broker.port,
        client_id="kept-phone",
        session_expiry_s=YEARS_S,
        policy="kept-policy",
        reports=Reporting(every_s=86_400, battery=lambda: 0.2),
    )
    async with Client(port=broker.port, client_id="nurse") as nurse:
        await nurse.policies.put("kept-policy", POLICY)
        async with kept, phone:
            await kept.subscribe("kept/t", 1)
            await phone.subscribe("kept/p", 1)
            await phone.report(battery=0.2)
            await phone.report(place="48.2,16.37")
            await nurse.publish("kept/p", {"pulse": 80}, qos=1)
            await nurse.publish("kept/p", {"pulse": 40}, qos=1)
            await anext(phone.messages())
            await phone.report(battery=0.1)
        await nurse.publish("kept/t", b"held for years", qos=1)
        await nurse.publish("kept/r", b"retained for years", qos=1, retain=True)
        while layout.segments(broker.data / "log", NODE)[0][0] < 50:
            await nurse.publish("noise", bytes(9_000), qos=1)
            await asyncio.sleep(0.02)


def main() -> None:
    """Make it."""
    target = Path(__file__).parent / f"data-directory-{int(sys.argv[1])}.tar.xz"
    if target.exists():
        raise SystemExit(f"{target.name} exists: it is what a broker of that format wrote, and stays")
    with tempfile.TemporaryDirectory() as folder:
        with BrokerProcess(Path(folder), settings=SETTINGS) as broker:
            asyncio.run(live(broker))
            broker.stop()
        with tarfile.open(target, "w:xz") as archive:
            for path in sorted(broker.data.rglob("*")):
                is_wanted = path.is_file() and (path.suffix in {".seg", ".json", ".sqlite"} or "-" in path.name)
                if is_wanted and not path.name.startswith("."):
                    info = archive.gettarinfo(path, f"data/{path.relative_to(broker.data)}")
                    info.mtime, info.uname, info.gname, info.uid, info.gid = 0, "", "", 0, 0
                    with path.open("rb") as stream:
                        archive.addfile(info, stream)


if __name__ == "__main__":
    main()
