"""Twelve devices come into a hall; half publish, half seek one of them, and none has to stay discoverable."""

from __future__ import annotations

from whimbrel.rendezvous.journal import attributes_of, subject_of
from whimbrel.sim.hall import HallScenario, run_hall

report = run_hall(HallScenario(devices=12, seconds=120, arrivals_s=30, seed=1))
print(f"{report.connected} of {report.pairs} pairs connected, the slowest after {max(report.waits_s):.1f} s")

matched = next(note for note, _ in report.notes if note.kind.value == "matched")
print(subject_of(matched), attributes_of(matched))

friends = run_hall(HallScenario(devices=12, seconds=120, arrivals_s=30, seed=1, friends_only=True))
hidden = next(note for note, _ in friends.notes if note.kind.value == "matched")
print(subject_of(hidden), attributes_of(hidden))  # the log names no device of a group
