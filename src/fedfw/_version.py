"""The version, readable without importing torch."""

__version__ = "1.1.0.dev0"
