#!/usr/bin/env bash
# Set up and run the main job: the table of sets, then a small Frank-Wolfe demo.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
.venv/bin/fedfw sets
echo
.venv/bin/fedfw demo
