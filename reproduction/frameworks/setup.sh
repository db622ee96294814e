#!/usr/bin/env bash
# The frameworks that `fedfw bench` compares with, in an environment of their own: .venv in this folder.
# Afterwards: FEDFW_FRAMEWORKS=reproduction/frameworks fedfw bench small
set -euo pipefail
cd "$(dirname "$0")"
python3 -m venv .venv
.venv/bin/pip install -q -c ../../constraints.txt torch==2.13.0
.venv/bin/pip install -q -c ../../constraints.txt "pfl==0.6.0" "flwr[simulation]>=1.41,<1.43"
