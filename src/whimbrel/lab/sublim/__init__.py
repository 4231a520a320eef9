"""The experiments of SUBLIM: the server's costs of policies, and the device's savings."""
