"""Named sessions: joining them, and the requests about them."""
