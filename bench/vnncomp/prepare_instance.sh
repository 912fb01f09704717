#!/bin/bash
# VNN-COMP: prepare_instance.sh v1 CATEGORY ONNX VNNLIB - brings the files and the tool into the page cache.
set -euo pipefail
if [ "${1:-}" != v1 ] || [ $# -ne 4 ]; then
    echo "usage: prepare_instance.sh v1 CATEGORY ONNX VNNLIB" >&2
    exit 1
fi
for file in "$3" "$4"; do
    [ -r "$file" ] || file=$file.gz
    [ -r "$file" ] || { echo "$file cannot be read" >&2; exit 1; }
    cat "$file" >/dev/null
done
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
BLOCKLP=${BLOCKLP:-$ROOT/.venv/bin/blocklp}
"$BLOCKLP" supports --onnx-opset-versions >/dev/null
