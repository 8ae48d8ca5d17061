"""Transforms and predicates of Kafka Connect's and Debezium's, and their chain.

Others use `chain` (`TransformChain`), `catalog` (the classes by name), `contract` (the interface of a class of a user's
own) and `properties` (reading and checking `transforms.*` and `predicates.*`).
"""
