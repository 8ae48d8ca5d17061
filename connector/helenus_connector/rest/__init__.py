"""What may an operator ask for and change: Kafka Connect's REST API, `/metrics` and `/health`.

Others use `server`, which serves it all, `listener` (what it needs of its machine), and `client`, which asks a running
worker.
"""
