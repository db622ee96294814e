"""``python -m fedfw``."""

import sys

from fedfw.cli import main

if __name__ == "__main__":
    sys.exit(main())
