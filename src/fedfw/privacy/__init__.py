"""What travels and what it tells: differential privacy, and attacks that measure leakage."""

from fedfw.privacy.guarantee import Privacy

__all__ = ["Privacy"]
