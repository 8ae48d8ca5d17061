"""What the change itself says, without a read.

Others use `none` (`WrittenResolver`) and `merge` (`StateResolver`: what an operator with state made of it).
"""
