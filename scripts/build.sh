#!/usr/bin/env bash
# Build the sdist and the pure wheel into dist/. Platform wheels: python -m cibuildwheel --output-dir dist
set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf dist build
FEDFW_PURE=1 "${PYTHON:-python3}" -m build --outdir dist .
