"""The change event: what one node's commit log says of one effect of a mutation, and its bytes.

- `change`: the event as an object, `Change`, with its `Scope`, `Bound` and `Effect`.
- `cells`: what the mutation says, cell by cell, where an agent was asked for it. `cells_writer`: its bytes.
- `row_cursor`: the bytes of a row, read cell by cell.
- `wire`: a Change to the value of an event and back.
- `own_format`: the fast path for values that our own agents wrote.
- `datastax`: the form of keys and values that DataStax's agents have on Pulsar.
- `placement`: the topic partition that a key's events go to.
"""
