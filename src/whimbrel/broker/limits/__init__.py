"""Limits: rates, memory and budgets of work for each client; counters, and notices for the operator."""
