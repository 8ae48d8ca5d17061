"""What was asked: the settings of a worker and of a connector, from their properties."""
