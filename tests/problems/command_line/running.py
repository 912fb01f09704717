"""Runs commands in this process."""

from typing import Any

from typer.testing import CliRunner

from blocklp.problems.command_line.app import app


def run(*arguments: object, code: int = 0) -> Any:
    """Run a command, which must end with an exit code."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def refused(*arguments: object) -> str:
    """Run a command that must be refused; return its one line on standard error."""
    result = run(*arguments, code=2)
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ")
    return lines[0]
