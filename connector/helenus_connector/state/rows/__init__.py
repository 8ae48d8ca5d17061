"""`state=rows`: the rows of a table, merged from the cells of its events, with the row before each change and after it.

Other packages use `query` (the streaming query of one table) and `rebuild` (rebuilds the whole data topic).

Words of this room:
- topic partition: one of the events topic's, which has a state of its own. In `PartitionState` and `partition_key`,
  and where rows are spoken of, a partition is one of Cassandra's.
- place, slot: each topic partition has a number, its place, from which Spark derives the state store that it goes to;
  a slot is one of these stores.
- disturbance: a truncation, a gap or lost events, after which rows may be other than the log says. They are counted,
  by topic partition.
- proven up to n: a row, or the state, was as in Cassandra when the topic partition had n disturbances.
- swept up to n: the snapshot after n disturbances is merged, and reads of the rows that it did not prove are requested.
- whole, trusts absence: the state has all rows, so one that is not in it was not there. A disturbance ends that.
- unknown: a row of which nothing live is stored while absence is not trusted. Cassandra may have columns of it.
- in doubt: an event contradicts what is stored, or does not say what became of it. The row is read once, now.
- unproven: write times do not decide what an event did, as a tombstone may have been purged (`Doubts`). The row is read
  now, and once more as the last word.
- last word: a read that was planned and came late enough to show all that was written before. It overrides the state.
- open: what a read left undecided (`ReadOutcome`). Another is planned, as the last word.
- guess: a liveness that a read did not show, and that is taken from the newest cell's write time.
- floor, soft, firm: deletions of wider scope delete up to a write time, the floor. A soft tombstone may have been
  purged, so that it hides nothing for sure; a firm one has not.
- horizon: up to this write time there may be deletions that are not known here, and late copies of forgotten ones.
"""
