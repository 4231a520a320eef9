"""Publications: the way of a publication, its lanes and its direct path."""
