"""Huang's controller in numbers: energy, load, attacks and dumb devices (chapters 2.1.4, 3 and 5 of the thesis)."""
