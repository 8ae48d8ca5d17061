"""Writing to a Log: Kafka now, Pulsar beside it; dead letters; the delivery contract."""
