"""Schemas that are registered later, or kept elsewhere than in a registry.

Others use `choice` (the schemas of a table's records, as its settings say) and `registrar` (registers in the driver
what waited for the registry).
"""
