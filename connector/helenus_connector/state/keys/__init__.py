"""`state=keys`: the keys that live on a connector's data topics, so that deletes of more than a row end each of them.

Others use `queries` (which connectors have such a query).
"""
