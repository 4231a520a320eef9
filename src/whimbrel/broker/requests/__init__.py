"""Requests: named sessions, policies and clients, as objects of JSON that are answered."""
