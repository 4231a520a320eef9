"""Wire: connections and their clients, and the bytes that are to be written to them."""
