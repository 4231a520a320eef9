"""The parts of ``whimbrel tickertape``: messages, their text, the tape, the keys, and its programs (terminal, pipe)."""
