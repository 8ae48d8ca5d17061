"""`state=keys`: the live keys of a connector's data topics, so that a delete of more than a row gives each a record.

Other packages use `queries` (the queries of all connectors).
"""
