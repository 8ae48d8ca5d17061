"""The agent: reads a Cassandra node's commit-log segments and appends every change of its CDC tables to a topic."""
