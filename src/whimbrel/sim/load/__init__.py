"""Load: what a broker is measured with. Publications of one length, through any broker, counted at the other end.

A generator that took packets apart would be slower than the brokers it measures. So publications are encoded before
the clock starts, all to one length; subscribers count bytes, and makes acknowledgements by slices.
Publishers are one process and subscribers another, which share a few numbers in a file.
Rule: no more than a window is under way at a time, so nothing need be dropped, and what is missing in the end is lost.
Rule: a single publisher writes many packets at a time, as a gateway does; many publishers write one each, in turn, as
a fleet of devices does.
Rule: it speaks MQTT 3.1.1, which all brokers do; only filters by content need 5.
"""
