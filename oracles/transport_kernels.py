"""Compiled transports: :mod:`blocklp.oracles.transport_flow`, compiled on first use and cached."""

from __future__ import annotations

from blocklp.kernels.compiled import kernel
from blocklp.oracles import transport_flow

send = kernel(grain=4)(transport_flow.send)
