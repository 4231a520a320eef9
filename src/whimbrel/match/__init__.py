"""Matching: find the subscriptions that want a notification, by subject, content, place and keys.

Each fast index stands beside a plain reference that gives the same answers.
"""
