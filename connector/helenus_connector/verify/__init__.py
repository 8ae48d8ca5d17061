"""Does a data topic say what its table says? A Spark batch job that compares them, and repairs the topic.

- `options`: what is asked for.
- `report`: what was found, and how far it is.
- `verifications`: those of a worker's connectors.
- `keys` and `scopes`: which keys a topic has, and which of them a delete marker takes.
"""
