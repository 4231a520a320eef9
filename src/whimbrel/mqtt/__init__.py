"""The wire: MQTT 5.0 and 3.1.1 as bytes and as packets, for both sides, without any input or output of its own."""
