"""Proximity: who is near, by a grid of cubes around the Earth's centre; decided as ``model.proximity`` decides."""
