"""Reading of policies: the lexer, and the parsers of calls and of statements, that turn a text into a tree."""
