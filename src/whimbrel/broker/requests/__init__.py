"""Requests: what clients ask of named sessions, policies and clients, as objects of JSON."""
