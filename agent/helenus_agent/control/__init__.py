"""One configuration for all agents, in Cassandra, and what each of them reports there.

For others: `configured_agent` (an agent that follows the configuration), and `statements` (about data sinks and data
sources).
"""
