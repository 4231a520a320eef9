"""The demo: a broker, the devices of a ward, the pipeline on the broker's log, a live page, and a final account."""
