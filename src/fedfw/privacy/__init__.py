"""What travels and what it tells: attacks that measure leakage."""
