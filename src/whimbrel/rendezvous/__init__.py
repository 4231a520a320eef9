"""Rendezvous: devices find each other without being discoverable (Huang, MIT 2004).

``events`` are the values, ``messages`` and ``wire`` carry them, ``matching`` compares them, ``controller/`` introduces
the devices, ``device/`` is the other end, ``tokens`` proves friendships, ``radio/`` is the air.
"""
