"""General linear programs, with or without bounds of variables, to a certified answer."""
