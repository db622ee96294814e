"""Tables, plots and progress for people."""

from fedfw.report.tables import aligned, human_bytes

__all__ = ["aligned", "human_bytes"]
