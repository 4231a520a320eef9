"""Proximity: finds who is near with a grid of cubes around the Earth's centre; ``model.proximity`` is the reference."""
