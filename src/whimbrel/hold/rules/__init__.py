"""The numbered rules of docs/explanation/holding.md, by what they are about."""
