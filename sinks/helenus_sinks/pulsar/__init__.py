"""A Log on Pulsar.

- `log`: `PulsarLog`. `config`: how to reach Pulsar.
- `owners`, `epochs`: the one run whose producers may append to topics, and its numbers.
- `client`, `connection`, `wire`: Pulsar's binary protocol, from which broker has a topic down to frames.
- `errors`: its errors as ours.
"""

from helenus_schemas.pure import use_plain

use_plain("helenus_sinks.pulsar._entries", __file__)
