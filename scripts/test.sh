#!/usr/bin/env bash
# Set up with every extra and run the tests; arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh all
.venv/bin/python -m pytest "$@"
