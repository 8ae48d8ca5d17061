"""How does Spark run it: a streaming query for each group of connectors, its source, its batches and their tasks.

Others use `query_runner` (the life of a query, from its start to its end), `events_query` (a group's query),
`spark_session`, `worker_process` (what Spark's Python workers keep between tasks), `handover` (a query's batches, for a
function), `source` (the events topics as a Spark data source), `stream` (a query's stream of it), `placed_reader` and
`event_packs` (what goes from the source to an operator with state), `batch_parts` (what a batch's tasks read),
`batch_metrics` (what a batch did, in metrics and log), `batch_spans` (its trace), `small_batches` (done without a job
of Spark's), `internals` (of PySpark, whether they are known), `class_archive` (of Java's classes, for Spark's start)
and `garbage`.

"Task" has two meanings here. A task of Spark's runs in a Python worker: it reads a `TaskRanges`, and yields a
`TopicResult` for each topic. A `Task` (of `control.status`) is Kafka Connect's: one table of a connector, and how it
fares. A Spark task reads ranges of many tables, and a table may be read by several.

"Planner" has two as well: `BatchPlanner` plans a query's batches, in a process of its own; its client of the broker is
a `Planner` (of `log.events`).
"""
