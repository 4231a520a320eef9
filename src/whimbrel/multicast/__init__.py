"""Sockets, reach and a loopback link for nodes that speak on one link: shared by nearby/ and carry/."""
