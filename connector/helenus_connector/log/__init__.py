"""Reading topics of the message broker, on Kafka and on Pulsar alike.

Others use `choice` (Kafka or Pulsar, as the worker's file says) and `events` (the types that both have: `Offsets`,
`OffsetRange`, `Message`, `Planner`).
"""
