"""Files of states and solutions: arrays of numbers and a header of plain data, which cannot carry code.

A file is an uncompressed archive of NumPy (``.npz``) without pickles; its entry ``header`` is JSON.  It takes
no more memory to read than it is large, so that files of strangers may be opened.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blocklp.errors import FormatError

VERSION = 1

DAMAGED = zipfile.BadZipFile, ValueError, KeyError, TypeError, EOFError, MemoryError, RuntimeError
"""Errors of readers at files that are damaged or none of ours."""

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
        Name to tensor; names are identifiers.
    """
    text = json.dumps({"kind": kind, "version": VERSION, **header}).encode()
    arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}
    partial = Path(path).with_name(f"{Path(path).name}.part")
    with partial.open("wb") as file:
        np.savez(file, header=np.frombuffer(text, np.uint8), **arrays)  # type: ignore[arg-type]
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
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        claimed = sum(entry.file_size for entry in entries)
        stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        if not stored or claimed > os.path.getsize(path):
            raise FormatError(f"{path} is compressed, or claims to hold more than it does; {need}")
        with np.load(path, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        header = json.loads(arrays.pop("header").tobytes())
        native = {k: np.array(array, dtype=array.dtype.newbyteorder("=")) for k, array in arrays.items()}
        tensors = {name: torch.from_numpy(array) for name, array in native.items()}
        fields = header if isinstance(header, dict) else {}
        kind, version = fields.get("kind"), fields.get("version")
        matches = kind in kinds and version == VERSION
    except DAMAGED as error:
        raise FormatError(f"{path} cannot be read ({error}); {need}") from error
    if not matches:
        raise FormatError(f"{path} holds {kind!r} of version {version!r}; {need}, of version {VERSION}")
    return header, tensors
