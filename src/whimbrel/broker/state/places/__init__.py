"""Places: which subscriptions hear what is published somewhere, and where the devices are."""
