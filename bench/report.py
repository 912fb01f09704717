"""Results as JSON and as a Markdown table."""

from __future__ import annotations

import datetime
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch

import blocklp
from bench.registry import Case, Record


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line), cpu)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "blocklp": blocklp.__version__,
        "date": datetime.date.today().isoformat(),
    }


def write(case: Case, records: list[Record], command: str, folder: Path) -> None:
    """Write ``<case>.json``, ``<case>.md`` and the picture, if the case has one."""
    folder.mkdir(parents=True, exist_ok=True)
    where = machine()
    document = {"case": case.name, "command": command, "machine": where, "records": records}
    (folder / f"{case.name}.json").write_text(json.dumps(document, indent=1) + "\n")
    device = where["gpu"] or f"{where['cpu']}, {where['cores']} cores, {where['threads']} threads"
    keys = list(records[0])
    lines = [f"# {case.title}", "", case.note, "", f"`{command}` on {device}; torch {where['torch']}, {where['date']}.", ""]
    if case.draw is not None:
        from matplotlib.figure import Figure  # takes as long as small cases

        figure = Figure(figsize=(11, 4.2), layout="constrained")
        case.draw(records, figure)
        figure.savefig(folder / f"{case.name}.png", dpi=110)
        lines += [f"![{case.title}]({case.name}.png)", ""]
    lines += ["| " + " | ".join(keys) + " |", "|" + " --- |" * len(keys)]
    lines += ["| " + " | ".join(_cell(r[k]) for k in keys) + " |" for r in records]
    lines += ["", case.appendix.strip()] if case.appendix else []
    (folder / f"{case.name}.md").write_text("\n".join(lines) + "\n")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return str(value["shown"])
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.1f}"
    return str(value)
