"""The clocks of a broker in another process, moved by hand: what NTP, a suspended machine or an operator does to them.

Rule: the broker is not told. Python runs a module called ``sitecustomize`` when it starts; ours lets ``time_ns``,
``time`` and ``monotonic_ns`` add what stands in a file that both processes map, so a step takes effect at once.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

__all__ = ["SteppedClock", "customized"]

_STEPS = struct.Struct("qq")
_CODE = """
import mmap, struct, time

with open({path!r}, "r+b") as _file:
    _steps = mmap.mmap(_file.fileno(), {size})
_time_ns, _monotonic_ns, _unpack = time.time_ns, time.monotonic_ns, struct.Struct("qq").unpack_from
time.time_ns = lambda: _time_ns() + _unpack(_steps)[0]
time.time = lambda: time.time_ns() / 1e9
time.monotonic_ns = lambda: _monotonic_ns() + _unpack(_steps)[1]
"""


class SteppedClock:
    """The clocks of every broker whose environment is ``environment``."""

    def __init__(self, folder: Path, *, more: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "steps"
        path.write_bytes(_STEPS.pack(0, 0))
        with path.open("r+b") as stream:
            self._steps = mmap.mmap(stream.fileno(), _STEPS.size)
        self.environment = customized(folder, _CODE.format(path=str(path), size=_STEPS.size) + more)

    @property
    def wall_s(self) -> float:
        """By how much the time of day is wrong."""
        return float(_STEPS.unpack_from(self._steps)[0]) / 1e9

    def step(self, *, wall_s: float = 0.0, monotonic_s: float = 0.0) -> None:
        """Move the time of day, the monotonic clock, or both: then time has passed."""
        wall, monotonic = _STEPS.unpack_from(self._steps)
        _STEPS.pack_into(self._steps, 0, wall + int(wall_s * 1e9), monotonic + int(monotonic_s * 1e9))

    def close(self) -> None:
        """Let go of the file."""
        self._steps.close()


def customized(folder: Path, code: str) -> dict[str, str]:
    """Return the environment in which Python runs *code* first, and finds everything else where it would have."""
    (folder / "sitecustomize.py").write_text(code, encoding="utf-8")
    found = filter(None, (str(folder), os.environ.get("PYTHONPATH")))
    return {"PYTHONPATH": os.pathsep.join(found)}
