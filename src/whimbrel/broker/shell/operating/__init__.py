"""What operators do with a broker that runs: reload its files, ask for its status, read its log lines."""
