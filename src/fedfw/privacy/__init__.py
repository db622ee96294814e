"""Differential privacy for every client's samples."""

from fedfw.privacy.guarantee import Privacy

__all__ = ["Privacy"]
