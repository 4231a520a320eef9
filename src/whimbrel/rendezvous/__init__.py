"""Rendezvous: devices find each other without being discoverable (Huang, MIT 2004).

``events`` are publications and subscriptions; ``messages`` and ``wire`` carry them, and ``matching`` compares them.
``controller/`` introduces the devices, ``device/`` is a device's end, ``tokens`` proves membership in groups, and
``radio/`` sends and receives.
"""
