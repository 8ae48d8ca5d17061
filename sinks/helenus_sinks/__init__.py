"""Writing to a message broker.

- `log`: the interface `Log`, with its delivery contract.
- `kafka`, `pulsar`: a Log on each.
- `dead_letters`: events that could not be published, in a topic of their own.
"""
