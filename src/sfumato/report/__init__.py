"""One self-contained page about a run: its guarantee, its samples, its metrics, and how to repeat it."""

from sfumato.data.pictures import sample_grid
from sfumato.report.page import write_report

__all__ = ["sample_grid", "write_report"]
