"""How Spark runs it: queries, batches, tasks."""
