"""Matching of the past, over a log and not live: whom a publication reached, from where devices were at that time."""
