"""Radios: ``interface`` is what the shells around a controller and a device need; ``simulated/`` is air in software."""
