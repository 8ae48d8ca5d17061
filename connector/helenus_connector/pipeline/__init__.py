"""What becomes of a batch of one table's events: gate → resolve → shape → append → flush → mark → hand back.

Others use `stage`, `merged_stage` (its like after an operator with state) and `batch_outcome`.
"""
