"""Nodes on their way between processes: tensors travel as arrays of their own entries."""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Parcel(Generic[T]):
    """A value that is pickled as bytes in which every tensor has its own entries and no others.

    Torch pickles a tensor with all that it is a view of: rows of a table of multipliers, one for each of n
    nodes, would take n times the table.

    Parameters
    ----------
    value : object
        Can be pickled; tensors on the CPU come back as they are, without gradients.
    """

    def __init__(self, value: T) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        stream = io.BytesIO()
        _Packer(stream, pickle.HIGHEST_PROTOCOL).dump(self.value)
        return _opened, (stream.getvalue(),)


def _opened(data: bytes) -> Parcel[Any]:
    return Parcel(pickle.loads(data))


class _Packer(pickle.Pickler):
    """Writes tensors of the CPU as arrays."""

    def reducer_override(self, value: Any) -> Any:
        """Leave everything else to pickle."""
        torch = sys.modules.get("torch")  # without it there are no tensors
        if torch is not None and type(value) is torch.Tensor and value.device.type == "cpu":
            if value.dtype == torch.bfloat16:  # which NumPy has not
                return value.detach().clone().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            return torch.from_numpy, (value.detach().contiguous().numpy(),)
        return NotImplemented
