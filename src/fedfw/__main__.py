"""``python -m fedfw``."""

import sys

from fedfw.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
