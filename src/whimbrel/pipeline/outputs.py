"""Outputs: tables that a stream makes batch by batch, while others read them.

A table is a folder, and each batch that had rows is a folder in it, ``batch=<number>``, or ``batch=<first>-<last>`` for
several that were put together. Plain readers see one column more, ``batch``, and otherwise the table.
Rule: a batch appears with one rename, so a reader sees all of it or nothing; a batch that is there is never written
again, because doing a batch again makes the same.
Rule: a folder whose batches are all in a larger one is not looked at: putting batches together is one rename too, and
the small ones go afterwards.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

__all__ = ["Output", "Span"]

_NAME = re.compile(r"batch=([0-9]{1,18})(?:-([0-9]{1,18}))?")
_DIGITS = 12
_SMALL_BYTES = 32 << 20


class Span(NamedTuple):
    """A folder, and the batches that are in it."""

    first: int
    last: int
    path: Path


class Output:
    """One table below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def spans(self) -> list[Span]:
        """Return what there is, in order; what is in a larger one is left out."""
        found: list[Span] = []
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                name = _NAME.fullmatch(path.name)
                if name is not None:
                    found.append(Span(int(name[1]), int(name[2] or name[1]), path))
        found.sort(key=lambda span: (span.first, -span.last))
        kept: list[Span] = []
        for span in found:
            if not kept or span.last > kept[-1].last:
                kept.append(span)
        return kept

    def has(self, batch: int) -> bool:
        """Tell whether a batch is there."""
        return any(span.first <= batch <= span.last for span in self.spans())

    def put(self, batch: int, write: Callable[[Path], None]) -> None:
        """Have *write* make the folder of a batch, and let it appear."""
        if not self.has(batch):
            self._appear(f"batch={batch:0{_DIGITS}}", write)

    def put_rows(self, batch: int, rows: Iterable[Any], schema: Any) -> None:
        """Put Arrow batches; a batch without rows is not put at all."""
        table = pa.Table.from_batches(list(rows), schema=schema)
        if table.num_rows:
            self.put(batch, lambda path: _write(table, path))

    def _appear(self, name: str, write: Callable[[Path], None]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        making = self.folder / f"_making-{uuid4().hex}"
        try:
            write(making)
            making.rename(self.folder / name)
        finally:
            shutil.rmtree(making, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what an interrupted stream left behind."""
        kept = {span.path for span in self.spans()}
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                if path not in kept and (path.name.startswith("_making-") or _NAME.fullmatch(path.name)):
                    shutil.rmtree(path, ignore_errors=True)

    def compact(self, *, least: int = 16) -> int:
        """Put small neighbouring batches together, if there are at least so many; return how many went."""
        run: list[Span] = []
        for span in [*self.spans(), None]:
            if span is not None and _size(span.path) < _SMALL_BYTES:
                run.append(span)
                continue
            if len(run) >= least:
                return self._join(run)
            run = []
        return 0

    def _join(self, run: list[Span]) -> int:
        table = pads.dataset([str(file) for span in run for file in sorted(span.path.glob("*.parquet"))]).to_table()
        name = f"batch={run[0].first:0{_DIGITS}}-{run[-1].last:0{_DIGITS}}"
        self._appear(name, lambda path: _write(table, path))
        for span in run:
            shutil.rmtree(span.path, ignore_errors=True)
        return len(run)


def _write(table: Any, path: Path) -> None:
    path.mkdir()
    pq.write_table(table, path / "part-00000.parquet", compression="zstd")


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("*.parquet"))
