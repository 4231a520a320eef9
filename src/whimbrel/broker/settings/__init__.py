"""Settings: the sections of a configuration that are long enough for a file, and what a setting is."""
