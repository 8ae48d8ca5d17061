"""Which events go on: the copies that other replicas report are dropped here.

Others use `gate` (`OneGate`), `cache` (what is known of each change on this host), `event` (what an event holds) and
`replicas` (which nodes hold a row).
"""
