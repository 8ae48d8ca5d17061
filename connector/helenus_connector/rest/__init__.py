"""The HTTP API, as Kafka Connect has it."""
