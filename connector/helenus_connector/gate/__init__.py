"""Which events go on: the copies that other replicas report are dropped here.

Others use `gate` (`ChangeGate`), `levels` (how many replicas have to report a change), `cache` (what is known of each
change on this host), `waiting` (the changes that wait, in the driver), `event_content` (what an event holds) and
`replicas` (which nodes hold a row).
"""
