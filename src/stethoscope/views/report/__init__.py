"""The report: one run as one file that needs no server and no network; HTML, Markdown or JSON.

Promises: the HTML file carries the page's own script and style and all its data, compressed; its policy admits
exactly those two by their hashes, so nothing else in the file can run; it opens from file:// for as long as
browsers read HTML.
"""

from stethoscope.views.report.document import report_data, report_html
from stethoscope.views.report.markdown import report_markdown

__all__ = ["report_data", "report_html", "report_markdown"]
