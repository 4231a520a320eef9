"""Reading of policies: from the text to the tree, in words, calls and statements."""
