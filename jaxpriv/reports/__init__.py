"""Privacy reports."""

from jaxpriv.reports import plots
from jaxpriv.reports.card import render_html, write_report
from jaxpriv.reports.run import Settings, run_report
from jaxpriv.reports.tables import summary

__all__ = ["Settings", "plots", "render_html", "run_report", "summary", "write_report"]
