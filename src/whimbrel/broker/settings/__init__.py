"""Settings: what an operator may set, and how it is read from files."""
