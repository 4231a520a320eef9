"""Nearby: notifications around the place of their producer, without any server (STEAM, Meier and Cahill 2002).

``vocabulary`` types the events, ``cells`` divides the ground, ``frames/`` has the packets of the radio, ``group/`` has
producer, consumer and relay as pure cores, ``dispatcher`` delivers by deadline, ``prediction`` bounds the latency of an
event, and ``node`` combines them. In this room the paper's words stay: event, producer, consumer.
"""
