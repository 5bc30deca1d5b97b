"""Tables and figures of papers. Each is a declaration of trials and of the published numbers to compare with."""
