"""Cost functions of many variables, as blocks or tables, and parts of files that state them."""
