"""How the events topics are read, on Kafka and on Pulsar."""
