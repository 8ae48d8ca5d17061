"""What the change itself says, without a read.

Others use `none` (`AsWritten`) and `merge` (`FromState`: what an operator with state made of it).
"""
