"""Made-up worlds around the same cores."""
