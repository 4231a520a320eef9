"""The disk: what a broker does with its log beside writing it, in threads of their own."""
