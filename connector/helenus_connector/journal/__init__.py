"""What waits of connectors that publish exactly once, in a topic: a batch says it in the transaction of its records.

    batch            records + journal entry + positions of the events → one transaction
    a run's start    journal → unconfirmed keys and changes at the gate, as they were at these positions

- `transaction`: the transaction of one table's part of a batch.
- `batch_marks`: the same where Spark keeps state.
- `recovery`: where a run of a query begins.
- `committed`: the positions of connectors that do not run just now.
- `pulsar_journals`: the same of a group on Pulsar, which the driver writes after a batch's records.
- `support`: which connectors can publish exactly once.

What waits is kept in memory by `unconfirmed` and `gate`; `query` runs the batches.
"""
