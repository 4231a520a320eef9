"""Load generator for measuring a broker: sends publications of equal length, and counts deliveries at the other end.

A generator that parsed packets would be slower than the brokers that it measures. So it encodes all publications, at
equal length, before the clock starts. Subscribers count bytes, and build acknowledgements by slicing.
Publishers run in one process and subscribers in another; the two share a few numbers in a file.
Rule: at most one window is in flight, so a broker has no reason to drop anything; publications that are missing at the
end are lost.
Rule: a single publisher writes many packets at once, as a gateway does. Many publishers take turns and write one packet
each, as a fleet of devices does.
Rule: the generator speaks MQTT 3.1.1, which all brokers support; only content filters need MQTT 5.
"""
