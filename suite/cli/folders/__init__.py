"""Verbs about several folders of trials."""
