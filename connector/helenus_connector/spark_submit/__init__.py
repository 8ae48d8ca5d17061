"""What does `spark-submit` start? Not imported: the file is given to that command, and may lie anywhere."""
