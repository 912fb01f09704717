"""The command line: its commands, one module each, their options, and what they print."""
