"""The ``fedfw`` command: one file a command, and `fedfw.cli.main`, which calls them."""

from fedfw.cli.main import main

__all__ = ["main"]
