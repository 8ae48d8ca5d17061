"""Converters of Kafka Connect's, and of Confluent's for it: records as `connect_data` has them, to bytes.

Others use `choice` (the converter that a class's name and its properties ask for), `headers` (those of headers),
`subjects` (names of subjects) and `catalog` (the list of all).
"""
