#!/bin/bash
# VNN-COMP: run_instance.sh v1 CATEGORY ONNX VNNLIB RESULTS_FILE TIMEOUT
# Writes sat, unsat, unknown or timeout to the first line of the results file, and a counterexample after sat.
set -uo pipefail
if [ "${1:-}" != v1 ] || [ $# -ne 6 ]; then
    echo "usage: run_instance.sh v1 CATEGORY ONNX VNNLIB RESULTS_FILE TIMEOUT" >&2
    exit 1
fi
onnx=$3 vnnlib=$4 results=$5 seconds=$6
[ -e "$onnx" ] || onnx=$onnx.gz
[ -e "$vnnlib" ] || vnnlib=$vnnlib.gz
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
BLOCKLP=${BLOCKLP:-$ROOT/.venv/bin/blocklp}
# Stands if the tool is killed. The competition reads queries of floats as real ones and replays counterexamples.
echo unknown >"$results" || exit 1
"$BLOCKLP" verify "$vnnlib" --network "$onnx" --timeout "$seconds" --real-semantics --result-file "$results" \
    --quiet ${THREADS:+--threads "$THREADS"} >/dev/null
code=$?
# 0 sat or unsat, 1 unknown, 3 timed-out: the results file says which.
case $code in 0 | 1 | 3) exit 0 ;; *) exit "$code" ;; esac
