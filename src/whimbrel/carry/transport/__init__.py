"""Transports: how the frames of carriers travel."""
