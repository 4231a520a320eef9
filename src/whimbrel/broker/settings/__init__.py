"""Settings: the configuration of a broker, its sections, and the code that reads it from files."""
