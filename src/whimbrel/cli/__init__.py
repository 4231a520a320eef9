"""The command line: ``whimbrel COMMAND --help``.

Rule: a command reads its options, calls the library and prints; one file a command group.
Rule: 0 is success, 1 an honest no (a check that failed), 2 a bad input with one clear message; never a traceback.
"""

from whimbrel.cli.main import main

__all__ = ["main"]
