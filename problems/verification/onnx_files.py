"""ONNX files: their models within limits, and their replay by onnxruntime."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blocklp.deadline import Deadline
from blocklp.errors import FormatError, ShapeError, needed
from blocklp.problems.files import MAX_BYTES, read_bytes

if TYPE_CHECKING:
    import onnx

Array = NDArray[Any]

PARSED = 1e8
"""Bytes of a file that onnx or onnxruntime takes in in a second."""

IMPORT = 0.15
"""Seconds in which onnx is imported."""


def require_onnx() -> Any:
    """Return the package onnx.

    Raises
    ------
    MissingDependencyError
        It is not installed.
    """
    with needed("networks in files need the package onnx", "verify"):
        import onnx
    return onnx


def load_model(file: Path, max_bytes: int, deadline: Deadline) -> tuple[onnx.ModelProto, bytes]:
    """Return a model with all its weights, and the data of its file.

    Parameters
    ----------
    file : Path
        The file.
    max_bytes : int
        Bytes that it and the files beside it may hold.
    deadline : Deadline
        Checked before each step.
    """
    deadline.check("importing onnx", 0.0 if "onnx" in sys.modules else IMPORT)
    onnx = require_onnx()
    data = read_bytes(file, max_bytes=max_bytes, deadline=deadline)
    deadline.check(f"reading {file}", len(data) / PARSED)
    try:
        model = onnx.load_model_from_string(data)
        beside = sum(_bytes_beside(tensor, file) for tensor in onnx.external_data_helper._get_all_tensors(model))
    except Exception as error:  # protobuf and onnx have no common base.
        raise FormatError(f"{file}: not an ONNX file, or a damaged one ({error}); fetch it again") from error
    if len(data) + beside > max_bytes:
        raise FormatError(f"{file} and the files beside it hold more than {max_bytes} bytes; raise max_bytes if they may")
    deadline.check(f"reading the files beside {file}", beside / PARSED)
    try:
        onnx.external_data_helper.load_external_data_for_model(model, str(file.parent))
    except Exception as error:
        raise FormatError(f"{file}: its weights are missing or damaged ({error}); fetch them again") from error
    return model, data


def _bytes_beside(tensor: onnx.TensorProto, file: Path) -> int:
    """Return how many bytes of another file a tensor takes."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if "location" not in entries:
        return 0
    return int(entries["length"]) if "length" in entries else (file.parent / entries["location"]).stat().st_size


def source_of(file: Path, data: bytes) -> Path | bytes:
    """Return a file, by its name because weights may lie in files beside it, or its data if they are compressed in it."""
    with file.open("rb") as stream:
        return file if stream.read(8) == data[:8] else data


class Runtime:
    """A file in onnxruntime, on one thread of the CPU.

    Parameters
    ----------
    path : path-like
        The file, compressed or not.  Give none that ``read_onnx`` has not read: onnxruntime has no limits of its own.
    max_bytes : int
        Most bytes that it may hold once decompressed.
    source : Path or bytes, optional
        What to read in its place.
    deadline : Deadline, optional
        When to give up.

    Raises
    ------
    FormatError
        onnxruntime does not take the file.
    MissingDependencyError
        onnxruntime is not installed.
    TimeLimitError
        The deadline is over, or would be.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int = MAX_BYTES,
        source: Path | bytes | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        with needed("a replay needs the package onnxruntime", "verify"):
            import onnxruntime
        self.file = Path(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        # Products with quantised weights as the file states them, not with results that are quantised to be faster.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        if not self.file.is_file():
            raise FileNotFoundError(f"{self.file}: no such file")
        if source is None:
            source = source_of(self.file, read_bytes(self.file, max_bytes=max_bytes, deadline=deadline))
        if deadline is not None:
            size = len(source) if isinstance(source, bytes) else source.stat().st_size
            deadline.check(f"loading {self.file} into onnxruntime", size / PARSED)
        try:
            given = source if isinstance(source, bytes) else os.fspath(source)
            self._session = onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # The classes of onnxruntime have no common base.
            raise FormatError(f"{self.file}: onnxruntime does not take it ({error})") from error
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or len(outputs) != 1:
            raise FormatError(f"{self.file}: {len(inputs)} inputs and {len(outputs)} outputs where one of each is needed")
        self._name = inputs[0].name
        self._shape = tuple(n if isinstance(n, int) and n > 0 else 1 for n in inputs[0].shape)
        self._dtype = np.float64 if inputs[0].type == "tensor(double)" else np.float32

    @property
    def element_type(self) -> str:
        """The precision of the input, "float32" or "float64"."""
        return np.dtype(self._dtype).name

    def __call__(self, x: Array) -> Array:
        """Evaluate the network.

        Parameters
        ----------
        x : ndarray, shape (inputs,) or (batch, inputs)
            Flattened inputs, evaluated one at a time; rounded to the precision of the file, float32 as a rule.

        Returns
        -------
        ndarray, shape (outputs,) or (batch, outputs)
            In the precision of the file.

        Raises
        ------
        ShapeError
            ``x`` has the wrong shape.
        FormatError
            onnxruntime fails.
        """
        x = np.asarray(x, dtype=self._dtype)
        if x.ndim not in (1, 2) or x.shape[-1] != math.prod(self._shape):
            raise ShapeError(f"{self.file} takes {math.prod(self._shape)} inputs, got an array {x.shape}")
        if x.ndim == 2:
            return np.stack([self(row) for row in x])
        try:
            result = self._session.run(None, {self._name: x.reshape(self._shape)})[0]
        except Exception as error:
            raise FormatError(f"{self.file}: onnxruntime fails ({error})") from error
        return np.asarray(result).reshape(-1)
