"""Files of states and solutions: arrays of numbers and a header of plain data, which cannot carry code.

Files have the format of ``safetensors``; what they hold is JSON in the entry ``blocklp`` of their metadata,
with a digest of all numbers.  A file takes no more memory to read than it is large, so that files of
strangers may be opened.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, numpy, safe_open
from torch import Tensor

from blocklp.errors import FormatError

VERSION = 2

ENTRY = "blocklp"
"""The entry of the metadata that says what a file holds."""

File = str | os.PathLike[str]


def write(path: File, kind: str, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a file, which takes its name only once it is complete.

    Parameters
    ----------
    path : str or path
        Where to; nothing is appended to it.
    kind : str
        What it holds.
    header : mapping
        Data that JSON can say.
    tensors : mapping
        Name to tensor.
    """
    arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}
    stated = {"kind": kind, "version": VERSION, **header}
    text = json.dumps(stated | {"digest": _digest(stated, arrays)})
    partial = Path(path).with_name(f"{Path(path).name}.part")
    partial.write_bytes(numpy.save(arrays, {ENTRY: text}))
    partial.replace(path)


def read(path: File, kinds: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return header and tensors of a file of one of some kinds.

    Raises
    ------
    FormatError
        If it is no such file, or damaged.
    OSError
        If it cannot be opened.
    """
    need = f"give a file that save() wrote for a {' or a '.join(kinds)}"
    with Path(path).open("rb"):
        pass  # whether it can be opened; what follows is about what it holds
    try:
        with safe_open(path, "numpy") as found:
            header = json.loads((found.metadata() or {}).get(ENTRY, "{}"))
            arrays = {name: found.get_tensor(name) for name in found.keys()}
    except (SafetensorError, ValueError, RecursionError) as error:
        raise FormatError(f"{path} cannot be read ({error}); {need}") from error
    fields = header if isinstance(header, dict) else {}
    kind, version, digest = fields.get("kind"), fields.get("version"), fields.pop("digest", None)
    if kind not in kinds or version != VERSION:
        raise FormatError(f"{path} holds {kind!r} of version {version!r}; {need}, of version {VERSION}")
    if digest != _digest(fields, arrays):
        raise FormatError(
            f"{path} is damaged: its numbers are not those that were written; write it again by save()"
        )
    return fields, {name: torch.from_numpy(array) for name, array in arrays.items()}


def _digest(stated: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of what a file holds."""
    found = hashlib.sha256(json.dumps(stated, sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        found.update(f"{name} {array.dtype.str} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()
