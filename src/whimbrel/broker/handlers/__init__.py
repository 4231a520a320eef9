"""Handlers: what each packet and each request does."""
