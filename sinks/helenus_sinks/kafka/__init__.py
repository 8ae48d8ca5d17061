"""A Log on Kafka.

- `log`: `KafkaLog`.
- `errors`: librdkafka's errors as ours.
- `rights`: what a login may not do with topics.
- `settings`: the producer's settings, and which of an operator's librdkafka refuses.
"""
