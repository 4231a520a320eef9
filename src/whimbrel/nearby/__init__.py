"""Nearby: notifications around the place they come from, with no server anywhere (STEAM, Meier and Cahill 2002).

``vocabulary`` types the events, ``cells`` divides the ground, ``frames/`` is what goes over the air, ``group/`` has the
producer, the consumer and the relay as pure cores, ``dispatcher`` delivers by deadline, ``prediction`` says how late an
event can be, and ``node`` puts them together. In this room the paper's words stay: event, producer, consumer.
"""
