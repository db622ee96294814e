#!/usr/bin/env bash
# Real SuperLinks and SuperNodes on 127.0.0.1, and a soak of 1,000 rounds; "faults" kills and corrupts for ten minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh all
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # a dozen processes with a thread for each core wait for each other
export PYTHONDONTWRITEBYTECODE= # else every process that they start compiles everything anew
.venv/bin/python -m pytest -n 2 --dist loadfile -m "${1:-deployment}" tests/deployment tests/flower tests/estimators/test_deployed.py
