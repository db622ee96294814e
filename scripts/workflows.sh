#!/usr/bin/env bash
# Check the workflows with zizmor, offline, in the environment of scripts/audit.lock.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/audit.sh --environment
.venv-audit/bin/zizmor --offline --no-progress --quiet .github/workflows
echo "zizmor finds nothing in .github/workflows"
