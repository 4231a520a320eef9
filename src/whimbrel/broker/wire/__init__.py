"""Wire: connections and their clients, the properties of packets, and the bytes that are to be written."""
