"""The doctor: checks everything that a pipeline needs, and reports problems with advice.

| module | checks |
|---|---|
| ``machine`` | Python and its packages, Java, memory, cores, disks |
| ``session`` | whether Spark starts, and its workers run the same versions |
| ``logs`` | a log: its format, its nodes, its end |
| ``streams`` | the folder of a stream: its plan, its state, its tables |

Rule: the doctor only reads: it repairs, creates and removes nothing. A stream or a broker may run meanwhile.
Rule: pure functions of values decide what is a problem; the other functions read files and run programs.
"""

from __future__ import annotations

__all__: list[str] = []
