"""The C code under the address and undefined-behaviour sanitizers: a run of its paths ends without
a report.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src" / "fedfw"
FLAGS = [
    "-g",
    "-O1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "-Wno-psabi",
]
PROGRAM = """
import importlib.util, sys
for name, path in zip(("fedfw.cpu._softmax", "fedfw.linalg._lanczos"), sys.argv[1:]):
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
import torch, fedfw.cpu.softmax, fedfw.linalg.lanczos
from fedfw.linalg.singular import top_singular
fedfw.cpu.softmax._compiled = sys.modules["fedfw.cpu._softmax"]
fedfw.linalg.lanczos._compiled = sys.modules["fedfw.linalg._lanczos"]
def softmax(n, m, f, c, bias, drawn):
    inputs, targets = torch.randn(n, m, f), torch.randint(c, (n, m))
    sizes, rows = torch.randint(1, m + 1, (n,)), torch.randperm(n)
    picks = (torch.rand(n, drawn) * sizes[rows][:, None]).long() if drawn else None
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(n, c * (f + bias), dtype=dtype)
        for gradients in (torch.empty(n, x.shape[1]), torch.empty(0)):
            values = torch.empty(n)
            given = inputs, targets, sizes, rows, picks, x, c, bool(bias)
            fedfw.cpu.softmax.softmax_gradient(*given, torch.rand(n), values, gradients)
            assert values.isfinite().all() and gradients.isfinite().all()
torch.manual_seed(0)
for n, m, f, c in ((1, 1, 1, 2), (3, 7, 5, 3), (2, 65, 17, 10), (2, 300, 33, 26), (1, 700, 8, 100)):
    for bias in (0, 1):
        for drawn in (0, 1, 9):
            softmax(n, m, f, c, bias, drawn)
for shape in ((1, 129, 131), (2, 140, 133)):
    for dtype in (torch.float32, torch.float64):
        assert top_singular(torch.randn(shape, dtype=dtype), tol=1e-3).value.isfinite().all()
for wrong in (fedfw.cpu.softmax._compiled.gradients, fedfw.linalg.lanczos._compiled.steps):
    try:
        wrong(1, 2)
    except Exception:
        continue
    raise AssertionError("wrong arguments were taken")
print("done")
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no compiler")
def test_the_sanitizers_find_nothing(tmp_path: Path) -> None:
    built = []
    for source in (SOURCES / "cpu" / "softmax.c", SOURCES / "linalg" / "lanczos.c"):
        built.append(str(tmp_path / f"_{source.stem}.so"))
        include = f"-I{sysconfig.get_path('include')}"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", *FLAGS, include, str(source), "-o", built[-1], "-lm"],
            check=True,
        )
    found = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    environment = os.environ | {
        "LD_PRELOAD": found.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": str(SOURCES.parent),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *built], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "done\n"
