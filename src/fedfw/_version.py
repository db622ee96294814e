"""The version, readable without importing torch."""

__version__ = "0.2.0.dev0"
