"""Content of a report, independent of its format: verdicts, tables, provenance."""
