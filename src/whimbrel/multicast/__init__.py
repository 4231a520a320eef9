"""Sockets, simulated reach and a loopback link for nodes on one network link; shared by nearby/ and carry/."""
