#!/usr/bin/env bash
# Set up with every extra and run the tests; arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh all
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # two workers with a thread for each core wait for each other
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" # else tests with more threads wait for each other at full speed
export PYTHONDONTWRITEBYTECODE= # else every worker, and every process that a test starts, compiles everything anew
.venv/bin/python -m pytest "$@"
