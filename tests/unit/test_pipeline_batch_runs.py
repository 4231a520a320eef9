"""A batch run that fails: the tables that it committed can be read, and the others are as before."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from whimbrel.log.writer import LogWriter
from whimbrel.model.notification import Notification
from whimbrel.pipeline import TABLES_MADE
from whimbrel.pipeline.batch import jobs
from whimbrel.pipeline.files import delta
from whimbrel.pipeline.files.delta import delta_schema, read, written_file

DAY_US = 86_400_000_000
BEGIN = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000


def publish(log: Path) -> None:
    """Write a log with 100 facts of a day and 50 of the next."""
    with LogWriter(log, "n") as writer:
        for seq in range(1, 151):
            at = BEGIN + seq + (DAY_US if seq > 100 else 0)
            writer.append(Notification(node="n", seq=seq, published_at=at, subject="a"))


@pytest.mark.parametrize("failure", [OSError, KeyboardInterrupt])
def test_a_run_that_fails_between_two_commits_leaves_the_committed_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    """Its data files were removed with those of the other tables, so that nobody could read it."""
    publish(tmp_path / "log")
    out = tmp_path / "out"
    folders: list[str] = []

    def make_files(_spark: object, job: Any, _spans: object, **_: object) -> Any:
        folders.append(job.folder)
        files: dict[str, list[Path]] = {}
        for table in job.tables:
            (out / table / job.folder).mkdir(exist_ok=True)
            schema = delta_schema(table)
            rows = pa.Table.from_pylist([dict.fromkeys(schema.names)], schema=schema)
            files[table] = [out / table / written_file(out, table, rows, folder=job.folder).path]
        return SimpleNamespace(files=files, seconds={})

    def replace_table(folder: Path, table: str, paths: Any) -> None:
        if table == "contacts":
            raise failure
        delta.replace_table(folder, table, paths)

    monkeypatch.setattr(jobs, "OnSpark", lambda _: None)
    monkeypatch.setattr(jobs, "make_files", make_files)
    monkeypatch.setattr(jobs, "replace_table", replace_table)
    spark: Any = None
    tables = [name for name in TABLES_MADE if name in {"deliveries", "contacts", "dead_letters"}]
    with pytest.raises(failure):
        jobs.run(spark, log=tmp_path / "log", out=out, tables=tables)
    at = tables.index("contacts")
    assert at > 0
    assert [read(out, name).num_rows for name in tables] == [1] * at + [0] * (len(tables) - at)
    assert [(out / name / folders[0]).exists() for name in tables] == [True] * (at + 1) + [False] * (
        len(tables) - at - 1
    )
    assert not (out / tables[0] / folders[0] / "scratch").exists()
