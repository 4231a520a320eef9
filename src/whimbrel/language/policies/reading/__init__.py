"""From the text of a policy to its tree: words, calls, statements."""
