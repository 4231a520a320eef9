"""What a client says of its device, and the policy that decides what the device gets."""
