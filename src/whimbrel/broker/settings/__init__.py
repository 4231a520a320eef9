"""Settings: the configuration of a broker, its sections, and how it is read from files."""
