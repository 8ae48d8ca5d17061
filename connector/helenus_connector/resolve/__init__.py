"""What the change itself says, without a read.

Others use `none` (`AsWritten`).
"""
