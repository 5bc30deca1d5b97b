"""Content of a report, independent of its format: headlines, tables, provenance."""
