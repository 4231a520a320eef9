"""MQTT 5.0 and 3.1.1: codec, packets and protocol state of client and server, without any input or output."""
