"""Keys: turns the bytes of a keyboard into characters and names of keys.

Rule: any bytes are accepted. An unknown sequence gives no key, and never becomes text.
Rule: a key is one printable character, or the name of a key, which is longer: ``enter``, ``up``.
"""

from __future__ import annotations

import codecs
import re

from whimbrel.cli.ticker.text import clean

__all__ = ["KeyReader"]

_CONTROLS = {
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x15": "erase",  # Ctrl-U, as in a shell
    "\x03": "interrupt",
    "\x04": "end",
    "\x1b": "escape",
}
_SEQUENCES = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\x1b[Z": "tab back"}
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)")


class KeyReader:
    """Turns a terminal's bytes into keys; a character may arrive in parts."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, data: bytes) -> list[str]:
        """Return the keys that *data* completes.

        A terminal sends a sequence in one piece, so an escape at the end is the escape key.
        """
        text, keys, at = self._decoder.decode(data), list[str](), 0
        while at < len(text):
            sequence = _SEQUENCE.match(text, at)
            found = sequence[0] if sequence is not None else text[at]
            at += len(found)
            key = _SEQUENCES.get(found) or _CONTROLS.get(found) or (found if found == " " else clean(found))
            if key and (sequence is None or found in _SEQUENCES):
                keys.append(key)
        return keys
