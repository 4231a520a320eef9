"""Campus++ in a made-up world: carriers that meet by contacts, topics with subscribers, and what comes of it."""
