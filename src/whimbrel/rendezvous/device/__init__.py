"""The device's end of the rendezvous: ``states`` is Figure 4-6, ``core`` what a device does, ``wishes`` its record.

Bluetooth itself is untouched: this layer stands above it and asks it for pages and scans (Huang, chapter 4).
"""

from whimbrel.rendezvous.device.core import Device
from whimbrel.rendezvous.device.states import PUBLISHER, SUBSCRIBER, DeviceState, Step, diagram

__all__ = ["PUBLISHER", "SUBSCRIBER", "Device", "DeviceState", "Step", "diagram"]
