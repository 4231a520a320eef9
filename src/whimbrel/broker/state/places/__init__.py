"""Places: the subscriptions that match only publications near them, and the places of the devices."""
