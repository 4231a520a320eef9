"""Hold: sessions that keep receiving while devices come and go (Elvin proxy, sections 4 and 5)."""
