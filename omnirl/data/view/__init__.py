"""Rows as a person wants to see them, in the terminal and as a page."""
