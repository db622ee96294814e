#!/usr/bin/env bash
# Make .venv in the checkout with fedfw in it. "scripts/setup.sh all" adds every extra; done already, it does nothing.
# Versions and hashes are those of the lock files, which scripts/lock.py writes.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=${1:-plain}
lock=requirements.lock
[ "$wanted" = all ] && lock=requirements-all.lock
stamp=.venv/fedfw-$wanted-$(cat pyproject.toml setup.py reproduction/pyproject.toml constraints.txt requirements*.lock src/fedfw/*/*.c | sha256sum | cut -c1-16)
if [ ! -e "$stamp" ]; then
  echo "setting up .venv ($wanted): a few minutes the first time" >&2
  [ -x .venv/bin/python ] || "${PYTHON:-python3}" -m venv .venv
  install() { .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"; }
  here=$(.venv/bin/python -c 'import platform as p, sys; print(p.system(), p.machine(), "Python %d.%d" % sys.version_info[:2])')
  # Without --no-deps pip would want a hash of torch with them, which others depend on.
  if grep -qx "# hashes for $here" requirements.lock; then
    install --no-deps --require-hashes -r "$lock"
    # Builds of one version differ between indexes. The hashes are those of the build that pip chooses.
    install --dry-run --no-deps --report .venv/torch.json -r constraints.txt
    build=$(.venv/bin/python -c 'import json; print(*(o["metadata"]["version"] for o in json.load(open(".venv/torch.json"))["install"]))')
    awk -v start="torch==$build \\\\" '$0 == start { on = 1 } on { print } on && !/\\$/ { exit }' requirements-torch.lock >.venv/torch.lock
    if [ -z "$build" ]; then
      : # it is there already
    elif [ "${FEDFW_ANY_TORCH:-}" = 1 ]; then
      echo "FEDFW_ANY_TORCH=1: torch $build is installed by its version, without a hash" >&2
    elif [ ! -s .venv/torch.lock ]; then
      echo "torch $build: requirements-torch.lock has no hash of this build. Set FEDFW_ANY_TORCH=1 to install it by its version," \
        "or lock it: python3 scripts/lock.py --only torch" >&2
      exit 1
    else
      install --no-deps --require-hashes -r .venv/torch.lock
    fi
  else
    echo "the lock files have no hashes for $here: their versions are installed without that check" >&2
    sed -e '/^    --hash=/d' -e 's/ \\$//' requirements.lock >.venv/requirements.lock
    sed -e '/^    --hash=/d' -e 's/ \\$//' requirements-all.lock >.venv/requirements-all.lock
    install --no-deps -r ".venv/$lock"
  fi
  # torch by exact version, where it is not there yet, and what it needs: for builds with CUDA these are its libraries, by the
  # exact versions that torch names and without hashes.
  install -r constraints.txt
  install --no-deps --no-build-isolation -e . -e ./reproduction # built by the locked setuptools
  .venv/bin/python -m pip check --disable-pip-version-check >&2
  touch "$stamp"
fi
