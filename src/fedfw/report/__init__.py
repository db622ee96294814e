"""Tables and pages for people."""

from fedfw.report.document import Cell, Document, Table, csv_text, text_of
from fedfw.report.tables import aligned, human_bytes

__all__ = [
    "Cell",
    "Document",
    "Table",
    "aligned",
    "csv_text",
    "human_bytes",
    "text_of",
]
