"""Limits of each client: rates, memory and budgets of work; also the counters, and notices for the operator."""
