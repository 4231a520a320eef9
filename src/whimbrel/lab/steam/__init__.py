"""STEAM in numbers: the figures of the paper, a city, and scalability."""
