"""The cost of policies for a server: a broker with up to hundreds of doctors, in processes and over sockets."""
