"""The version, readable without importing torch."""

__version__ = "0.3.0.dev0"
