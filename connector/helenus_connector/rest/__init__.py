"""What may an operator ask for and change: Kafka Connect's REST API, `/metrics` and `/health`.

Others use `server` alone, which serves it all.
"""
