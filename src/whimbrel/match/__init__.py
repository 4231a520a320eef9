"""Match: who wants a notification? Topics, content, places and keys, each beside its plain reference."""
