"""Names that functions of one block may use, and how these are written in Triton."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

REAL, WHOLE, TRUTH = "real", "whole", "truth"
ORDER = {TRUTH: 0, WHOLE: 1, REAL: 2}
ARRAYS = ("cost", "centre", "point")
FUNCTIONS: dict[str, Callable[..., str]] = {
    "abs": "tl.abs({})".format,
    "fabs": "tl.abs({})".format,
    "sqrt": "root({})".format,
    "exp": "tl.exp({})".format,
    "log": "tl.log({})".format,
    "floor": "tl.floor({})".format,
    "ceil": "tl.ceil({})".format,
    "sign": "sign({})".format,
    "copysign": "with_sign({}, {})".format,
    "minimum": "lowest({}, {})".format,
    "maximum": "highest({}, {})".format,
    "isnan": "({0} != {0})".format,
    "isfinite": "(({0} - {0}) == 0)".format,
    "isinf": "(tl.abs({0}) == float('inf'))".format,
}
"""Functions of ``math`` and ``np`` on real numbers, of the names there."""

CASTS = {"float": REAL, "np.float64": REAL, "int": WHOLE, "np.int64": WHOLE, "bool": TRUTH}
PREDICATES = ("isnan", "isfinite", "isinf")
BOTH = ("copysign", "minimum", "maximum")

SIGNS: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
}

OPERATORS: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
    ast.Pow: ("**", operator.pow),
    ast.BitAnd: ("&", operator.and_),
    ast.BitOr: ("|", operator.or_),
    ast.BitXor: ("^", operator.xor),
}
