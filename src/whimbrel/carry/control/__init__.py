"""Control data: what the campus tells its nodes, which keys it signs with, its clock and the ids of its topics."""
