"""Errors of blocklp: one base class, leaves named by cause.

Every message names the thing that is wrong and how to repair it. Each leaf is also the built-in exception
that Python users would catch (``ValueError``, ``IndexError``, ...): ``except ValueError`` keeps working.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class BlocklpError(Exception):
    """Base of every error that blocklp raises on purpose."""


class ModelError(BlocklpError, ValueError):
    """A model is stated wrongly: bounds, names, costs or expressions."""


class ShapeError(ModelError):
    """A tensor has the wrong shape."""


class NonFiniteError(ModelError):
    """A tensor holds NaN or an infinity where a finite number is needed."""


class ScopeError(BlocklpError, IndexError):
    """The scope of a block is out of range, repeats a variable or does not fit its type."""


class InstanceError(BlocklpError, IndexError):
    """There is no instance of this number in the batch."""


class UnknownNameError(BlocklpError, KeyError):
    """There are no variables, blocks or parameters of this name, or the handle is one of another model."""

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError would put the sentence in quotes


class OracleError(BlocklpError, ValueError):
    """A min-oracle returned the wrong shape, a non-finite value or a point outside its block."""


class OptionError(BlocklpError, ValueError):
    """A solver option is unknown or out of its range."""


class DeviceError(BlocklpError, RuntimeError):
    """The device asked for is not there."""


class ProcessError(BlocklpError, RuntimeError):
    """Processes that work together are not there, failed, stalled, or state something else."""


class FormatError(BlocklpError, ValueError):
    """A file is malformed, truncated or holds data that cannot be used."""


class MissingDependencyError(BlocklpError, ImportError):
    """An optional package is needed and not installed."""


class LicenceError(BlocklpError, RuntimeError):
    """The licence of another solver does not cover an LP."""


class TimeLimitError(BlocklpError, TimeoutError):
    """The time limit was reached before there was anything to return."""


@contextmanager
def needed(said: str, extra: str) -> Iterator[None]:
    """Turn an ImportError into one of ours: ``said``, and how the packages of the extra are installed."""
    try:
        yield
    except ImportError as error:
        raise MissingDependencyError(f"{said}: {install(extra)}") from error


def install(extra: str) -> str:
    """Say how the packages of an extra are installed: from a clone, since no index serves blocklp yet."""
    return f"pip install -e '.[{extra}]' in a clone of blocklp"
