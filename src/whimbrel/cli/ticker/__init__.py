"""The parts of ``whimbrel tickertape``: messages, their text on a terminal, the tape, the keys, and the two shells."""
