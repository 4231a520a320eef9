"""Commands for operators of a broker."""
