"""How do rows that were there before get onto the topic?

Others use `snapshots` (all of a worker's), `request` (what an operator asks for), `signals` (a signal table
or topic) and `snapshot_store` (how far one is).
"""
