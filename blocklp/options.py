"""Validation of arguments: the value in the form that is used, or an error that names it and the remedy."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from numbers import Integral, Real
from types import UnionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blocklp.errors import (
    BlocklpError,
    DeviceError,
    InstanceError,
    MissingDependencyError,
    ModelError,
    OptionError,
    ShapeError,
    install,
)
from blocklp.kernels.backend import known, runs_on

LARGEST = 2**63
"""The least positive integer that no tensor holds."""


def whole(value: object, name: str, least: int = 1) -> int:
    """An integer that fits a machine word.

    Parameters
    ----------
    value : object
        Given by the caller; booleans are refused.
    name : str
        Of the option, for messages.
    least : int
        The smallest value that is allowed.

    Returns
    -------
    int
        The value.

    Raises
    ------
    OptionError
        If it is no such integer.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) < LARGEST:
        words = {0: "an integer, not negative", 1: "a positive integer"}
        need = words.get(least, f"an integer from {least} on")
        raise OptionError(f"{name} is {shown(value)}; it must be {need}")
    return int(value)


def real(value: object, name: str, *, positive: bool = True) -> float:
    """A finite number that is positive, or at least not negative.

    Parameters
    ----------
    value, name
        As in :func:`whole`.
    positive : bool
        Whether zero is refused too.

    Returns
    -------
    float
        The value.

    Raises
    ------
    OptionError
        If it is no such number.
    """
    number, most = math.nan, sys.float_info.max
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value) if abs(value) <= most else number  # type: ignore[operator]
    if not (number > 0 or (number == 0 and not positive)):
        need = "positive number" if positive else "number, not negative"
        raise OptionError(f"{name} is {shown(value)}; it must be a {need}")
    return number


def flag(value: object, name: str) -> bool:
    """True or False and nothing that only counts as one."""
    if not isinstance(value, bool | np.bool_):
        raise OptionError(f"{name} is {shown(value)}; it must be True or False")
    return bool(value)


def hook(value: Any, name: str) -> None:
    """Refuse what cannot be called, None excepted."""
    if value is not None and not callable(value):
        raise OptionError(f"{name} is {shown(value)}; give a function, or None")


def required_hook(value: Any, name: str) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise OptionError(f"{name} is {shown(value)}; give a function")


def per_instance(value: object, name: str, like: Tensor, least: float = -math.inf) -> Tensor:
    """One number for every instance.

    Parameters
    ----------
    value : object
        A number for all instances, or ``(batch,)`` numbers.
    name : str
        Of the option, for messages.
    like : Tensor
        ``(batch,)``: the device and the length of the result.
    least : float
        The smallest value that is allowed.

    Returns
    -------
    Tensor
        ``(batch,)`` float64.

    Raises
    ------
    OptionError
        If the shape is another one, or an entry is NaN or below ``least``.
    """
    need = f"a number or ({len(like)},) numbers" + (f", none below {least:g}" if least > -math.inf else "")
    try:
        data = numbers(value, name)
    except ModelError as error:
        raise OptionError(f"{error}; it must be {need}") from error
    if isinstance(value, bool) or data.dim() > 1 or (data.dim() == 1 and len(data) != len(like)):
        raise OptionError(f"{name} is {shown(value)}; it must be {need}")
    if bool(data.isnan().any()) or bool((data < least).any()):
        raise OptionError(f"{name} is {shown(value)}; it must be {need}, without NaN")
    return data.to(like.device).expand(len(like))


def numbers(value: object, what: str) -> Tensor:
    """Read a number, array or tensor as float64 on the CPU, without gradients.

    Raises
    ------
    ModelError
        If it holds no real numbers, or requires gradients while autograd is on.
    """
    without_gradients(value, what)
    return with_gradients(value, what).detach()


def with_gradients(value: object, what: str) -> Tensor:
    """Read a number, array or tensor as float64 on the CPU, with its gradients.

    Raises
    ------
    ModelError
        If it holds no real numbers.
    """
    try:
        data = value if isinstance(value, Tensor) else as_tensor(np.asarray(value))
        if not data.is_complex():
            return data.to_dense().to("cpu", torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        kind = type(value).__name__
        raise ModelError(f"{what}: cannot read {kind} as numbers; give a tensor, array or number") from error
    need = "give real ones, of which the imaginary part is not dropped"
    raise ModelError(f"{what} holds complex numbers; {need}")


def as_tensor(value: object, dtype: torch.dtype | None = None) -> Tensor:
    """Turn what users give into a tensor; arrays that must not be written to are copied."""
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        value = value.copy()
    return torch.as_tensor(value, dtype=dtype)


def without_gradients(value: object, what: str) -> None:
    """Refuse tensors that require gradients while autograd is on, alone or in lists.

    Raises
    ------
    ModelError
        If there is one.
    """
    if isinstance(value, Tensor):
        if value.requires_grad and torch.is_grad_enabled():
            raise ModelError(
                f"{what} requires gradients, which nothing carries on from here; give it without, by "
                f".detach(), and see blocklp.value for what has gradients"
            )
    elif isinstance(value, list | tuple):
        for part in value:
            if isinstance(part, Tensor | list | tuple):
                without_gradients(part, what)


def lengths(shape: Any, what: str) -> tuple[int, ...]:
    """Read the shape of an array of variables: an integer or a sequence of them, all positive."""
    parts = (shape,) if isinstance(shape, Integral) else shape
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        raise ShapeError(f"{what} has shape {shown(shape)}; give an integer or a sequence of integers")
    if any(isinstance(n, bool) or not isinstance(n, Integral) or not 1 <= int(n) < LARGEST for n in parts):
        raise ShapeError(f"{what} has shape {shown(shape)}; every length must be a positive integer")
    return tuple(map(int, parts))


def text(value: object, what: str) -> str:
    """Read a name: a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise ModelError(f"{what} is {shown(value)}; it must be a string that is not empty")
    return value


def of_type(
    value: Any,
    kinds: type | UnionType,
    name: str,
    need: str,
    error: type[BlocklpError] = OptionError,
) -> None:
    """Refuse values of other types.

    Parameters
    ----------
    value : object
        Given by the caller.
    kinds : type
        The types that are allowed.
    name : str
        Of the option, for messages.
    need : str
        What to give instead, for messages.
    error : type
        Of the error that is raised.

    Raises
    ------
    BlocklpError
        Of the given type, if the value is of another one.
    """
    if not isinstance(value, kinds):
        raise error(f"{name} is {shown(value)}; give {need}")


def instance_number(value: object, batch: int) -> int:
    """The number of an instance, negative ones counted from the end as in lists.

    Raises
    ------
    InstanceError
        If there is none.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not -batch <= int(value) < batch:
        need = f"of {batch}, give 0 to {batch - 1}, or -1 to {-batch} from the end"
        raise InstanceError(f"there is no instance {shown(value)}; {need}")
    return int(value) % batch


def known_backend(backend: object, device: torch.device) -> str:
    """The name of a backend (:mod:`blocklp.kernels.backend`) that serves tensors on a device.

    Raises
    ------
    OptionError
        If there is no such backend, or it is for devices of another type.
    MissingDependencyError
        If numba is asked for and missing.
    """
    kind = known("torch" if backend == "auto" else backend)
    if kind.device not in (None, device.type) and not runs_on(kind, device):
        need = f"is for devices of type {kind.device!r}, and the device is {device}; leave backend out"
        raise OptionError(f"backend {backend!r} {need}")
    if "numba" in kind.builds_on and find_spec("numba") is None:
        raise MissingDependencyError(f"backend {backend!r} needs numba: {install('fast')}")
    return str(backend)


def known_device(device: Any) -> torch.device:
    """Look a device up.

    Raises
    ------
    DeviceError
        If there is none of this name or it is missing here, or if it has no float64, which bounds need.
    """
    try:
        found = device if isinstance(device, torch.device) else torch.device(str(device))
    except RuntimeError as error:
        raise DeviceError(
            f"device is {shown(device)}; use 'cpu' or one that `blocklp doctor` lists"
        ) from error
    if found.type == "meta":
        raise DeviceError("device 'meta' holds no numbers; use device='cpu'")
    try:
        torch.zeros(1, dtype=torch.float64, device=found)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        why = str(error).partition("\n")[0]
        raise DeviceError(f"device {str(found)!r} is not available ({why}); use device='cpu'") from error
    return found


def working_precision(dtype: Any) -> torch.dtype:
    """Refuse precisions in which iterates cannot be."""
    if not isinstance(dtype, torch.dtype) or dtype not in (torch.float32, torch.float64):
        raise OptionError(f"dtype {shown(dtype)} is not supported; use torch.float64 or torch.float32")
    return dtype


def shown(value: object) -> str:
    """A value in a message: what it is where it is long."""
    if isinstance(value, Tensor | np.ndarray) and math.prod(value.shape) > 8:
        return f"a {type(value).__name__} of shape {tuple(value.shape)}"
    said = repr(value)
    return said if len(said) <= 120 else f"{said[:100]}... ({type(value).__name__})"


def named(name: str, where: Sequence[Any]) -> str:
    """Name an entry of an array, as ``x[2, 1]``; the name alone where it is a single number."""
    return f"{name}[{', '.join(str(int(i)) for i in where)}]" if len(where) else name


def named_row(rows: Mapping[str, int], number: int) -> str:
    """Name a row by its number among all, as ``caps[3]``; ``rows`` are how many rows each name has."""
    for name, count in rows.items():
        if number < count:
            return f"{name}[{number}]"
        number -= count
    return f"row {number}"
