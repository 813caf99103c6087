"""A sweep as one HTML file that needs neither server nor network: `report(engine, sweep, ...)`.

It lies here because its charts are the dashboard's. It knows nothing of Streamlit, and what isn't in the database (how
failures are told apart, what diagnostics mean) is handed to it.
"""

from dashboard.static_report.content import Failure
from dashboard.static_report.page import report

__all__ = ["Failure", "report"]
