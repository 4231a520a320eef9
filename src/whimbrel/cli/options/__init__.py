"""Options that several commands share, and the readers of their values."""
