#!/usr/bin/env bash
# Set up and run the main job: a federated run on the embedded digits; arguments go to "fedfw run".
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
bash "$root/scripts/setup.sh"
"$root/.venv/bin/fedfw" run "$@"
