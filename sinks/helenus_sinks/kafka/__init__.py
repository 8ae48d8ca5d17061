"""A Log on Kafka.

- `log`: `KafkaLog`.
- `errors`: librdkafka's errors as ours.
- `settings`: the producer's settings, and which of an operator's librdkafka refuses.
"""
