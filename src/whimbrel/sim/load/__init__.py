"""Load: what a broker is measured with."""
