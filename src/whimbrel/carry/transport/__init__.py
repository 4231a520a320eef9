"""Transports: senders and receivers of the frames of carriers."""
