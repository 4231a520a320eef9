"""``whimbrel rendezvous``: devices that find each other over Bluetooth."""
