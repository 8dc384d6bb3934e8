"""One HTML file that tells a run: verdict, findings, pictures, coverage, configuration."""

from gradwatch.report.write import write_report

__all__ = ["write_report"]
