"""The cost of policies for a server: a broker with up to hundreds of doctors, in other processes and over sockets."""
