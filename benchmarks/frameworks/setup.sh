#!/usr/bin/env bash
# The frameworks that `fedfw bench` compares with, in an environment of their own: .venv-frameworks
set -euo pipefail
cd "$(dirname "$0")/../.."
python3 -m venv .venv-frameworks
.venv-frameworks/bin/pip install -q -c constraints.txt torch==2.13.0
.venv-frameworks/bin/pip install -q -c constraints.txt "pfl==0.6.0" "flwr[simulation]>=1.41,<1.43"
