"""What the agent and the connector share: CQL types, Avro mapping, the Change and its wire form, names, errors."""

__version__ = "0.1.0"
