"""Deliver: which copies leave for whom: lanes, policies, and what a connection has room for."""
