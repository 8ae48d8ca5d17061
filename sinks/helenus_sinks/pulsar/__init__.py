"""A Log on Pulsar."""
