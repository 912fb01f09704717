"""General linear programs: from files and matrices, with or without bounds of variables, to a certified answer."""
