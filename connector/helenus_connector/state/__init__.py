"""The state of a connector between batches, on Spark's state store: of the keys of its tables, or of whole rows."""
