"""Processes of this machine, which a rank watches to notice that another one ended."""

import os
from contextlib import suppress
from pathlib import Path


def has_ended(pid: int) -> bool:
    """Return whether a process of this machine is gone, or has ended and waits for its parent."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] in "ZX"


def process_namespace() -> str | None:
    """Return what two processes have in common that see each other in /proc; None where there is no /proc."""
    with suppress(OSError):
        if os.readlink("/proc/self") == str(os.getpid()):  # else it shows the processes of another namespace
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            return boot + os.readlink("/proc/self/ns/pid")
    return None
