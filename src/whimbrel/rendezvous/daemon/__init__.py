"""Daemons: a controller or a device on a real radio, from its settings to its end.

``settings`` reads TOML; ``controller`` and ``device`` serve; ``reporting`` tells a broker; ``metrics`` counts for
Prometheus; ``timers`` is the clock; ``air_hall`` runs a controller and devices in one process, on an air in software.
"""
