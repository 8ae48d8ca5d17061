"""What was asked for: the properties of a worker and of its connectors, and where a run keeps its files.

Others use `files` (a worker's file and its connectors' files, loaded at once), `worker` (`WorkerSettings`), `connector`
(`ConnectorSettings`) and its part `state`, `column_masks` and `row_condition` (what must not leave), `column_names`
(checks columns' names against tables), `model` (properties to settings, from wherever they come), `run_directory`,
`replication` (`ReplicationSettings`) and `spark_submit` (the settings of a worker that it started).
"""
