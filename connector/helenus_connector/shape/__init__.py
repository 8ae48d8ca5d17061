"""What a record looks like, and the schemas it is registered with.

Others use `choice` (the shape that a connector's settings ask for) and `schemas` (those of its records).
"""
