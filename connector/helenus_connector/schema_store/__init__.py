"""Where the schemas of Avro records are kept: the interface of a store, and the class that a connector's file names.

Others use `contract` (the interface) and `store_class` (finds a class of a user's own).
"""
