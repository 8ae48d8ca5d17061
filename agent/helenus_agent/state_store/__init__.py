"""A copy of the agent's state in Cassandra, with which it goes on where its directory is lost.

For others: `state_store` (takes the node's state over at a start, and writes the copy).
"""
