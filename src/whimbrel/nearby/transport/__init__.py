"""Transport: nearby groups over UDP and IPv6 link-local multicast, and where a node's place comes from."""
