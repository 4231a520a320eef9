"""Bluetooth's discovery and piconets in software, with the standard's timing (version 1.2).

``timing`` is the hop sequences, ``baseband`` computes inquiries and pages event by event, ``slots`` does the same slot
by slot and is the proof of it, ``air`` adds range, connections, roles, park and beacons, ``table`` measures Table 2.1.
"""
