"""How do rows that were there before get onto the topic?

Others use `snapshots` (all of a worker's), `asked` (what an operator asks for), `signals` (a signal table
or topic) and `state` (how far one is).
"""
