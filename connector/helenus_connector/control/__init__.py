"""What is to run, how does it fare, and where does it stand: connectors, their tasks, tables, topics and positions.

Others use `connectors` (what is wanted of each, and what became of it), `status` (how a connector and its tasks
fare), `keyspaces` (files that stand for several connectors), `source_connectors` (of data sources), `offsets`
(positions as an operator sees and sets them), `conflict`, `tables` (reading and matching tables), `topics`, `plan`
(what the driver gives its planner and workers), `positions` and `checkpoint` (where topics are read on), `documents`
(what a worker keeps), `fences` (of tasks that see `checkpoint.dir`), `topic_ownership` (with the brokers, of all
others) and `backoff`.
"""
