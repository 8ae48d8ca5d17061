"""Which events go on: replicas' copies are dropped here."""
