"""What a report says: headlines, tables, provenance; without a format."""
