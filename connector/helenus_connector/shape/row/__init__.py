"""The shape `row`: key, full row, and null for a row that is gone.

Others use `row` (`RowShape`).
"""
