"""Writing to a message broker.

- `log`: the interface `Log`, with its delivery contract.
- `kafka`, `pulsar`: a Log on each.
- `chunks`: the form of records that are larger than their topic takes; `chunk_reader`: reads them, for consumers of
  Kafka; `pulsar_chunk_reader`: the same on Pulsar.
- `dead_letters`: events that could not be published, in a topic of their own.
"""
