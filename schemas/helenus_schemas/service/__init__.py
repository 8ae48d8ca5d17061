"""What every process needs: logs, metrics over HTTP, files that survive a crash, a Cassandra session."""
