"""What a key's row is now: it is read again from Cassandra, until a read confirms what is published.

Others use `resolver` (`RereadResolver`).
"""
