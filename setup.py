"""The compiled parts, which are optional: without a compiler torch does the same in more time.

``FEDFW_PURE=1`` leaves them out: the wheel then works on every machine.
"""

import os

from setuptools import Extension, setup

ARGUMENTS = ["-O3", "-g0", "-Wall", "-Wextra", "-Wno-psabi"]  # GCC 12 or Clang
SOURCES = {
    "fedfw.cpu._softmax": "src/fedfw/cpu/softmax.c",
    "fedfw.linalg._lanczos": "src/fedfw/linalg/lanczos.c",
}


def extensions() -> list[Extension]:
    """Return the extension modules, or none for a pure wheel."""
    if os.environ.get("FEDFW_PURE") == "1":
        return []
    return [
        Extension(name, [source], extra_compile_args=ARGUMENTS, optional=True)
        for name, source in SOURCES.items()
    ]


setup(ext_modules=extensions())
