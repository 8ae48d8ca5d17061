"""The workers of one `group.id`: `membership` elects the one that leads, on Pulsar `pulsar_membership`. `shared_topic`
has what they share, of which `documents` are the connectors and how far snapshots are. `status_topic` shows tools how
connectors fare. `term` is where a worker begins to lead. `state_directories` says where connectors' states are.
"""
