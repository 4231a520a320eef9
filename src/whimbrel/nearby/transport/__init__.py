"""Transport: nearby groups over UDP and IPv6 link-local multicast, and the sources of a node's place."""
