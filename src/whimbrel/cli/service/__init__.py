"""Commands for those who run a broker."""
