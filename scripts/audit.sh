#!/usr/bin/env bash
# Ask the public advisory service about every locked version, with pip-audit in an environment of its own. Exit status: 0
# when no vulnerability is known, 1 when one is, 2 when the service could not be asked about every version. "--environment"
# makes the environment alone.
set -euo pipefail
cd "$(dirname "$0")/.."
stamp=.venv-audit/locked-$(sha256sum <scripts/audit.lock | cut -c1-16)
(
  flock 9 # the audit and the check of workflows may want it at the same time
  if [ ! -e "$stamp" ]; then
    "${PYTHON:-python3}" -m venv .venv-audit
    .venv-audit/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r scripts/audit.lock
    touch "$stamp"
  fi
) 9>.venv-audit.lock
[ "${1:-}" != --environment ] || exit 0
# The hashes are left out: what is asked about are versions, and pip-audit would fetch the files to compare them.
sed -e '/^    --hash=/d' -e '/^-r /d' -e 's/ \\$//' requirements*.lock >.venv-audit/versions.txt
# pip-audit's own exit status does not tell: versions that it could not look up count as clean there.
{ .venv-audit/bin/pip-audit --disable-pip --no-deps --progress-spinner off --format json -r .venv-audit/versions.txt \
  2>.venv-audit/log || true; } | .venv-audit/bin/python scripts/audit.py
