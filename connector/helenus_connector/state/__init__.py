"""What is known of rows between batches, on Spark's state store: of their keys, or of whole rows."""
