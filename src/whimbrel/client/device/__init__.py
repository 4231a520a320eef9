"""The client's device: reports of its state, and the policies that decide about deliveries to it."""
