"""How does Spark run it: a streaming query for each group of connectors, its source, its batches and their tasks.

Others use `query_runner` (the life of a query, from its start to its end), `events_query` (a group's query),
`spark_session`, `worker_process` (what Spark's Python workers keep between tasks), `handover` (a query's batches, for a
function), `source` (the events topics as a Spark data source), `event_packs` (what goes from the source to an operator
with state), `batch_metrics` (what a batch did, in metrics and log) and `garbage`.
"""
