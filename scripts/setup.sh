#!/usr/bin/env bash
# Make .venv in the checkout with fedfw in it. "scripts/setup.sh all" adds every extra; done already, it does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=${1:-plain}
package=.
[ "$wanted" = all ] && package='.[flower,privacy,dev]'
stamp=.venv/fedfw-$wanted-$(cat pyproject.toml constraints.txt | sha256sum | cut -c1-16)
if [ ! -e "$stamp" ]; then
  echo "setting up .venv ($wanted): a few minutes the first time" >&2
  [ -x .venv/bin/python ] || "${PYTHON:-python3}" -m venv .venv
  # torch first and by exact version: a range would fetch the newest build with its CUDA libraries.
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r constraints.txt
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e "$package"
  touch "$stamp"
fi
