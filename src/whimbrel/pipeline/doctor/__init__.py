"""The doctor: looks at everything that a pipeline stands on, and says what is wrong and what to do about it.

| module | what it looks at |
|---|---|
| ``machine`` | Python and its packages, Java, memory, cores, disks |
| ``session`` | whether Spark starts, and its workers are as we are |
| ``logs`` | a log: its format, its nodes, its end |
| ``streams`` | the folder of a stream: its plan, its state, its tables |

Rule: it only looks: nothing is repaired, made or removed, and a stream or a broker may be at work meanwhile.
Rule: what a number means is decided by functions of values; the rest reads files and asks programs.
"""

from __future__ import annotations

__all__: list[str] = []
