"""What was asked for: the properties of a worker and of its connectors, and where a run keeps its files.

Others use `files` (a worker's file and its connectors' files, loaded at once), `worker` (`WorkerSettings`), `connector`
(`ConnectorSettings`) and its part `state`, `column_names` (checks these against tables), `model` (properties to
settings, from wherever they come) and `run_directory`.
"""
