"""Campus++ in a simulated world: carriers that meet by contacts, topics with subscribers, and the figures of a run."""
