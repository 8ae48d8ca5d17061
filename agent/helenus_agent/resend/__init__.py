"""Segments that were archived, read again from where they are, and sent once more.

For others: `source_choice` (the source that settings name) and `resender` (a segment's changes as events).
"""
