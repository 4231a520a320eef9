"""The command line: ``whimbrel COMMAND --help``.

Rule: a command reads its options, calls the library and prints; one file per command group.
Rule: exit code 0 is success, 1 a negative result (a check that failed), 2 a bad input with one clear message; never a
traceback.
"""

from whimbrel.cli.main import main

__all__ = ["main"]
