"""Does a data topic say what its table says? A Spark batch job that compares them, and repairs the topic.

- `verify`: the job.
- `options`: what is asked for.
- `report`: what was found, and what the job does meanwhile.
"""
