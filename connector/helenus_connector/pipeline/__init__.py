"""What becomes of a batch of one table's events: gate → resolve → shape → append → flush → mark → hand back.

Others use `stage` and `outcome`.
"""
