"""The demo's parts: a broker, the devices of a ward, the pipeline on the broker's log, the page and the account."""
