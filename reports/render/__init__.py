"""The report as HTML and Markdown."""
