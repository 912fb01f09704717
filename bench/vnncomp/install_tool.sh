#!/bin/bash
# VNN-COMP: install_tool.sh v1 - sets up .venv at the root of the checkout.
set -euo pipefail
if [ "${1:-}" != v1 ]; then
    echo "expected the version string v1 as the first argument, got '${1:-}'" >&2
    exit 1
fi
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
"${PYTHON:-python3}" -m venv "$ROOT/.venv"
"$ROOT/.venv/bin/python" -m pip install --disable-pip-version-check -c "$ROOT/constraints.txt" -e "$ROOT[verify]"
"$ROOT/.venv/bin/blocklp" --version
