"""What runs first in Spark's Python processes? Not imported: the directory is on their PYTHONPATH."""
