"""A Log on Kafka.

- `log`: `KafkaLog`.
- `owned_log`: `OwnedKafkaLog`, of one producer of a run that owns the records of topics; `owners`: which run that is.
- `open_transactions`: what the brokers left open, and so keep from readers.
- `partition_reader`: reads a partition from an offset on.
- `groups`: the positions that consumer groups have committed.
- `kept_topics`: which topics would lose what they get.
- `errors`: librdkafka's errors as ours.
- `rights`: what a login may not do with topics.
- `settings`: the producer's settings, and which of an operator's librdkafka refuses.
"""
