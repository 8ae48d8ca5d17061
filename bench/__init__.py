"""Measurements: `python -m bench` runs all, `python -m bench path` one; docs/performance.md says what they found."""
