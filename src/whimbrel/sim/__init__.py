"""Simulated worlds and generated loads that run the same cores as the broker and the devices."""
