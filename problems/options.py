"""Options that commands of several problem modules have."""

from __future__ import annotations

from typing import Annotated

import typer

Device = Annotated[str, typer.Option(help="Where to compute: cpu, or one of the devices that `blocklp info` lists.")]
