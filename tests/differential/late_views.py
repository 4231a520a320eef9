"""Late views: a log as somebody sees it who sees each folder as it was at some moment, or a part of a file only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from whimbrel.log import layout
from whimbrel.log.compaction import compact
from whimbrel.log.export import export
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import Fact
from whimbrel.pipeline.files.visibility import Patience

__all__ = ["History", "LateView", "lived"]


@dataclass
class History:
    """What each folder of a log was after each thing that was done to it."""

    log: Path
    folders: dict[str, list[dict[str, bytes]]] = field(default_factory=dict)
    moments: int = 0

    def note(self) -> None:
        """Take down how the log is now."""
        there = {str(each.relative_to(self.log)): each for each in self.log.rglob("*") if each.is_dir()}
        for name in {"", *self.folders, *there}:
            folder = self.log / name
            files = (
                {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()} if folder.is_dir() else {}
            )
            self.folders.setdefault(name, [{} for _ in range(self.moments)]).append(files)
        self.moments += 1


def lived(log: Path, facts: Sequence[Fact], *, exports: bool, segment_bytes: int = 400) -> History:
    """Write *facts* of one node in three sessions of its broker, and export, cut and compact them if *exports*."""
    found, node = History(log), facts[0].node
    third = len(facts) // 3
    for number in range(3):
        with LogWriter(log, node, segment_bytes=segment_bytes) as writer:
            for fact in facts[number * third : (number + 1) * third if number < 2 else None]:
                writer.append(fact)
                writer.sync()
        found.note()
        if exports and number < 2:
            export(log, node, closed_only=False)
            found.note()
            for first, path in layout.segments(log, node)[:-1]:
                if first <= third:
                    path.unlink()
            found.note()
    if exports:
        compact(log)
        found.note()
    return found


class LateView:
    """What a worker sees of a log; it comes nearer to what there is as the worker waits, or never does."""

    def __init__(self, history: History, folder: Path, random: Random) -> None:
        self.folder, self._history, self._random = folder, history, random
        last = history.moments - 1
        self._at = {name: random.choice((last, random.randrange(history.moments))) for name in history.folders}
        self._at[""] = last
        self._is_stuck = random.random() < 0.1
        self._now_s = 0.0
        self.delays = 0
        """How often what there is was not all to be seen."""
        for name in history.folders:
            self._lay(name, is_cut=random.random() < 0.3)

    def patience(self) -> Patience:
        """Return how long to wait for the rest."""
        return Patience(seconds=90, sleep=self._sleep, clock=lambda: self._now_s)

    def _sleep(self, seconds: float) -> None:
        self._now_s += seconds
        self.delays += 1
        if self._is_stuck:
            self._now_s += 60  # not to try it forty times in vain
            return
        for name, at in self._at.items():
            if self._random.random() < 0.7:
                self._at[name] = self._random.randint(at, self._history.moments - 1)
                self._lay(name)

    def _lay(self, name: str, *, is_cut: bool = False) -> None:
        """Let a folder be as it was at some moment; where it *is_cut*, of a file only the beginning is to be seen."""
        folder, files = f"{self.folder}/{name}", self._history.folders[name][self._at[name]]
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 # paths are strings here: there are thousands
        with os.scandir(folder) as entries:
            gone = [each.path for each in entries if each.is_file() and each.name not in files]
        for path in gone:
            os.unlink(path)  # noqa: PTH108 # so
        for each, data in files.items():
            whole = not is_cut or each.endswith(".json") or self._random.random() < 0.5
            beside = f"{folder}/.{each}"
            with open(beside, "wb") as stream:  # noqa: PTH123 # so
                stream.write(data if whole else data[: self._random.randrange(len(data))])
            os.replace(beside, f"{folder}/{each}")  # noqa: PTH105 # so
