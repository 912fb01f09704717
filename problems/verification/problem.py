"""What a line about a failed query says."""

from __future__ import annotations


def problem_of(error: Exception) -> str:
    """Return one line about an error; that about a file names it first."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
