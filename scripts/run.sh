#!/usr/bin/env bash
# Set up and run the main job: a federated run on the embedded digits; arguments go to "fedfw run".
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
.venv/bin/fedfw run "$@"
