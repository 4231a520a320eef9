"""Run the benchmarks: ``python bench/run.py [NAME ...] [--quick] [--json] [--results DIR]``.

Every ``bench_<name>.py`` beside this file has ``run(*, quick) -> Report``. A full run keeps its results in
``bench/results``; a quick one proves only that everything runs and agrees, and keeps nothing unless told where.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from rich.console import Console

from measure import Check, Report, machine_facts, show, source_digest, write

_HERE = Path(__file__).parent


def main(arguments: Sequence[str]) -> int:
    """Run what *arguments* name; return the exit status."""
    names = sorted(path.stem.removeprefix("bench_") for path in _HERE.glob("bench_*.py"))
    options = _options(names, arguments)
    chosen = sorted(set(options.names or names))
    command = " ".join(["python bench/run.py", *chosen, *(["--quick"] if options.quick else [])])
    machine = machine_facts(command)
    directory = options.results or (None if options.quick else _HERE / "results")
    reports: list[Report] = []
    for name in chosen:
        report = import_module(f"bench_{name}").run(quick=options.quick)
        if not options.quick:  # a quick run keeps no times, so a colleague's edit meanwhile does no harm
            is_same = source_digest() == machine["source_sha256"]
            report.checks.append(Check("the source stayed as it was while it was measured", is_same))
        if directory is not None:
            write(report, machine, directory)
        if not options.json:
            show(report, Console())
        reports.append(report)
    passed = all(report.passed for report in reports)
    if options.json:
        records = {report.name: report.record(machine) for report in reports}
        print(json.dumps({"passed": passed, "reports": records}, ensure_ascii=False))
    return 0 if passed else 1


def _options(names: Sequence[str], arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/run.py", description="Measure Whimbrel beside its peers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to run, of: {', '.join(names)}; else all")
    parser.add_argument("--quick", action="store_true", help="small sizes: results are checked, times mean little")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--results", type=Path, metavar="DIR", help="where to keep the results")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(names):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
