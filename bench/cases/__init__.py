"""One registered case a file."""
