"""Tables and figures of papers, each a declaration of trials and of the published numbers to compare with."""
