"""Does a data topic say what its table says? A Spark batch job that compares them, and repairs the topic.

- `engine`: the job, `verify`.
- `options`: what is asked for.
- `report`: what was found, and how far it is.
- `verifications`: those of a worker's connectors.
"""
