#!/usr/bin/env bash
# Build the documentation site into docs/_build/html: offline, with every example run, and with any warning an error.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh all
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" MPLBACKEND=Agg PYTHONDONTWRITEBYTECODE=
.venv/bin/python -m sphinx -W --keep-going -q -b html docs docs/_build/html "$@"
echo "the site is in docs/_build/html/index.html"
