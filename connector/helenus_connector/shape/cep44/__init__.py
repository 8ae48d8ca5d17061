"""The shape `cep44`: a change in the envelope of CEP-44, as Cassandra's Sidecar publishes it.

Others use `shape` (`Cep44`), `schema` (that of its records) and `predicates` (a deleted range as conditions of CQL).
"""
