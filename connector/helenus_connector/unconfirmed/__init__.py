"""Keys that wait until a read confirms what was published of them.

Others use `unconfirmed_key` (one of them), `unproven_changes` (its changes), `keys` (all of a query's,
in the driver) and `files` (what is kept of them next to the checkpoint).
"""
