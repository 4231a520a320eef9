"""The archive of Spark's classes: where it is, and when a Java that Spark starts is told of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from whimbrel.cli.main import app
from whimbrel.pipeline.spark import java_classes
from whimbrel.pipeline.spark.java_classes import archive_file, started_from_archive, submit_options

NAME = "SPARK_SUBMIT_OPTS"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache of our own, with a Java."""
    binary = tmp_path / "jdk" / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(NAME, raising=False)
    return tmp_path


def _made() -> Path:
    archive = archive_file()
    assert archive is not None
    archive.write_bytes(b"classes")
    return archive


def test_another_java_or_spark_has_another_archive(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the other made would be refused."""
    first = archive_file()
    assert first is not None
    assert first.is_relative_to(home / "cache" / "whimbrel")
    monkeypatch.setattr(java_classes, "version", lambda _: "4.9.9")
    second = archive_file()
    (home / "jdk").rename(home / "other")
    monkeypatch.setenv("JAVA_HOME", str(home / "other"))
    assert len({first, second, archive_file()}) == 3


def test_without_java_there_is_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker's machine has none, and needs none."""
    monkeypatch.setenv("JAVA_HOME", str(home / "nowhere"))
    assert archive_file() is None


def test_a_folder_that_others_can_write_is_not_used(home: Path) -> None:
    """Code is loaded from it."""
    folder = home / "cache" / "whimbrel" / "spark-classes"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    found = archive_file()
    assert found is None or not found.is_relative_to(folder)


def test_java_is_told_of_an_archive_that_is_there() -> None:
    """And of none before it is made; what a user gives Java stays."""
    with started_from_archive():
        assert NAME not in os.environ
    archive = _made()
    with submit_options("-Dours=1"):
        with started_from_archive():
            told = os.environ[NAME]
        assert os.environ[NAME] == "-Dours=1"
    assert told.startswith("-Dours=1 ")
    assert f'-XX:SharedArchiveFile="{archive}"' in told
    assert NAME not in os.environ


@pytest.mark.parametrize("option", ["-XX:SharedArchiveFile=mine.jsa", "-XX:ArchiveClassesAtExit=mine.jsa"])
def test_the_users_own_archive_stays(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    """Java takes one."""
    _made()
    monkeypatch.setenv(NAME, option)
    with started_from_archive():
        assert os.environ[NAME] == option


@pytest.mark.parametrize(("works", "told"), [(True, "are written down ("), (False, "could not be written down")])
def test_warm_up_makes_it(monkeypatch: pytest.MonkeyPatch, *, works: bool, told: str) -> None:
    """Once; a Java that cannot is no reason to fail."""

    def make(archive: Path) -> bool:
        if works:
            archive.write_bytes(b"classes")
        return works

    monkeypatch.setattr("whimbrel.match.first_use.is_compiled", lambda: True)
    monkeypatch.setattr("whimbrel.pipeline.stream.first_start.make_archive", make)
    first, again = (CliRunner().invoke(app, ["warm-up"]) for _ in range(2))
    assert first.exit_code == again.exit_code == 0
    assert told in first.output
    assert ("they were there already" in again.output) is works
