"""What becomes of a batch of one table's events: gate → resolve → shape → append → flush → mark → hand back.

Others use `stage`, `merged_stage` (its like after an operator with state), `batch_outcome` and `batch_trace` (a
batch's spans).
"""
