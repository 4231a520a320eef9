"""Checks of the machine: Python and its packages, Java, memory, cores and disks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from whimbrel.pipeline.doctor.check import Check, failure, ok, warning, with_unit

__all__ = [
    "check_cores",
    "check_disk",
    "check_java",
    "check_memory",
    "check_package",
    "check_python",
    "examine_folders",
    "examine_machine",
]

_PYTHON = (3, 11)
_JAVA = 17
_PACKAGES = ("pyspark", "pandas", "pyarrow", "protobuf", "deltalake")
_MODULE = "jdk.incubator.vector"
_GB = 1_000_000_000
_LEAST_MEMORY = 2 * _GB
_LEAST_FREE, _LITTLE_FREE = _GB // 4, 2 * _GB

_BOUND = re.compile(r"(>=|<=|==|!=|<|>)\s*([0-9][0-9.]*)")
_MAJOR = re.compile(r'version "(?:1\.)?([0-9]+)')


# -- decisions -------------------------------------------------------------------------------------------------------


def check_python(version: tuple[int, ...]) -> Check:
    """Check the version of Python."""
    found, wanted = ".".join(map(str, version)), f"{_PYTHON[0]}.{_PYTHON[1]} or newer"
    if version >= _PYTHON:
        return ok("Python", found, wanted)
    return failure(
        "Python", found, wanted, "make a virtual environment with a newer Python, and install Whimbrel there"
    )


def check_package(name: str, found: str | None, requirement: str) -> Check:
    """Check the version *found* of a package against our *requirement*, such as ``>=4.1,<5``."""
    remedy, wanted = "run: pip install 'whimbrel[spark]'", requirement.replace(",", ", ")
    if found is None:
        return failure(name, "not installed", wanted, remedy)
    if all(_holds(found, sign, bound) for sign, bound in _BOUND.findall(requirement)):
        return ok(name, found, wanted)
    return failure(name, found, wanted, remedy)


def check_java(version_text: str | None, modules_text: str = "") -> Check:
    """Check Java by the output of ``java -version`` (None: no Java) and of ``java --list-modules``."""
    wanted = f"{_JAVA} or newer"
    remedy = f"install a Java {_JAVA} or newer (JRE or JDK, not a trimmed one), and set JAVA_HOME to it"
    major = None if version_text is None else _MAJOR.search(version_text)
    if version_text is None:
        return failure("Java", "none: neither JAVA_HOME nor the PATH has one", wanted, remedy)
    if major is None:
        return failure("Java", version_text.strip().partition("\n")[0] or "it says no version", wanted, remedy)
    if int(major[1]) < _JAVA:
        return failure("Java", major[1], wanted, remedy)
    if _MODULE not in modules_text:
        return failure("Java", f"{major[1]}, without the module {_MODULE}", wanted, remedy)
    return ok("Java", major[1], wanted)


def check_memory(size_bytes: int | None) -> Check:
    """Check the memory of the machine."""
    wanted = f"{with_unit(_LEAST_MEMORY)} or more"
    if size_bytes is None:
        return ok("memory", "not told by this system", wanted)
    if size_bytes < _LEAST_MEMORY:
        remedy = "run small batches (--facts-per-batch 20000), or use a machine with more memory"
        return warning("memory", with_unit(size_bytes), wanted, remedy)
    return ok("memory", with_unit(size_bytes), wanted)


def check_cores(cores: int) -> Check:
    """Check the number of cores that this process may use."""
    if cores < 2:
        remedy = "Spark, Java's own work and Python share it: expect a longer lag, or give it a second core"
        return warning("cores", str(cores), "2 or more", remedy)
    return ok("cores", str(cores), "2 or more")


def check_disk(name: str, path: Path, free_bytes: int | None, *, is_usable: bool, to_write: bool) -> Check:
    """Check the folder of a log or of tables; *free_bytes* is None if it does not exist and cannot be created."""
    wanted = f"{'a writable' if to_write else 'a readable'} folder, {with_unit(_LITTLE_FREE)} free"
    if free_bytes is None:
        return failure(
            name, f"{path}: no such folder, nor a folder that it could be made in", wanted, "correct the path"
        )
    if not is_usable:
        remedy = "run as the user whose files these are, or change their rights"
        return failure(name, f"{path}: may not be {'written' if to_write else 'read'}", wanted, remedy)
    found = f"{path}: {with_unit(free_bytes)} free"
    if free_bytes < _LEAST_FREE:
        return failure(name, found, wanted, "free some space: a full disk ends the stream, and a broker's appends")
    if free_bytes < _LITTLE_FREE:
        return warning(name, found, wanted, "free some space, or keep fewer days: whimbrel log export --keep-days N")
    return ok(name, found, wanted)


def _holds(found: str, sign: str, bound: str) -> bool:
    a, b = _numbers(found), _numbers(bound)
    length = max(len(a), len(b))
    a, b = (each + (0,) * (length - len(each)) for each in (a, b))
    return {">=": a >= b, "<=": a <= b, "==": a == b, "!=": a != b, "<": a < b, ">": a > b}[sign]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", version.partition("+")[0])[:3])


# -- reading the machine ---------------------------------------------------------------------------------------------


def examine_machine() -> list[Check]:
    """Check the installed software, the memory and the cores of this machine."""
    needed = _requirements()
    checks = [check_python(sys.version_info[:3])]
    checks += [check_package(name, _version(name), needed.get(name, "")) for name in _PACKAGES]
    return [*checks, check_java(*_java()), check_memory(_memory_bytes()), check_cores(_cores())]


def examine_folders(log: Path | None, out: Path | None) -> list[Check]:
    """Check the folders of a log and of tables, and the free space of their disks."""
    found = []
    for name, path, mode in (("disk of the log", log, os.R_OK), ("disk of the tables", out, os.R_OK | os.W_OK)):
        if path is None:
            continue
        # The folder of tables may be created later; a log must exist.
        place = _nearest(path) if name == "disk of the tables" else path if path.is_dir() else None
        free = None if place is None else shutil.disk_usage(place).free
        is_usable = place is not None and os.access(place, mode | os.X_OK)
        found.append(check_disk(name, path, free, is_usable=is_usable, to_write=bool(mode & os.W_OK)))
    return found


def _requirements() -> dict[str, str]:
    """Return the version requirements of our package, by package name."""
    try:
        lines = metadata.requires("whimbrel") or []
    except metadata.PackageNotFoundError:  # run from a folder of source
        return {}
    found = (re.match(r"([A-Za-z0-9_-]+)\s*([^;]*)", line) for line in lines)
    return {each[1]: each[2].strip() for each in found if each is not None}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _java() -> tuple[str | None, str]:
    """Return the version (None: no Java) and the modules that Java prints, for the Java that Spark would start.

    Spark starts the Java of JAVA_HOME if that is set, else the one on the PATH.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return None, ""
    try:
        said = [
            subprocess.run([java, option], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 # the user's own Java
            for option in ("-version", "--list-modules")
        ]
    except (OSError, subprocess.TimeoutExpired):
        return None, ""
    return said[0].stderr + said[0].stdout, said[1].stdout


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not every system reports it
        return None


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every system reports it
        return os.cpu_count() or 1


def _nearest(path: Path) -> Path | None:
    """Return *path*, or the nearest existing folder above it; None if there is none."""
    return next((each for each in (path.absolute(), *path.absolute().parents) if each.is_dir()), None)
