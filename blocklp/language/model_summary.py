"""What a model says of itself in a terminal and in a notebook."""

from __future__ import annotations

from itertools import islice
from typing import Any, Protocol

from blocklp.language.expression import Expression
from blocklp.language.handles import Blocks, Rows
from blocklp.language.variable import Variable
from blocklp.tables import SHOWN, Table, plural


class Stated(Protocol):
    """A model as far as it is summed up."""

    batch: int
    size: int
    variables: dict[str, Variable]
    blocks: list[Blocks]
    rows: list[Rows]
    objective: Expression | None
    maximizing: bool

    def sizes(self) -> dict[str, Any]:
        """As :meth:`Statement.sizes`."""


def summary(model: Stated) -> tuple[str, list[Table]]:
    """The title and the tables of a model."""
    sizes = model.sizes()
    sense = "no objective" if model.objective is None else "maximize" if model.maximizing else "minimize"
    alone = sizes["coupling"].get(0, 0) + sizes["coupling"].get(1, 0)
    coupled = f"{model.size - alone} of them shared by several blocks"
    size = plural(model.size, "variable")
    counts = f"{sizes['copies']} copies; {sizes['rows']} rows"
    title = f"Model of {plural(model.batch, 'instance')}, {sense}: {size}, {coupled}; {counts}"
    variables = [
        (
            f"{v.name}{list(v.shape)}",
            f"{float(v.lower.min()):g}",
            f"{float(v.upper.max()):g}",
            "integer" * v.integer,
        )
        for v in islice(model.variables.values(), SHOWN)
    ]
    blocks = [(b.name, str(len(b.scope)), str(b.scope.shape[1]), repr(b.type)) for b in model.blocks[:SHOWN]]
    rows = [(r.name, str(r.count), str(r.constraint.matrix.nnz)) for r in model.rows[:SHOWN]]
    return title, [
        Table(("variables", "least", "largest", ""), variables, len(model.variables)),
        Table(("blocks", "number", "variables each", "type"), blocks, len(model.blocks)),
        Table(("rows", "number", "entries"), rows, len(model.rows)),
    ]
