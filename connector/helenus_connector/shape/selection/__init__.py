"""What of a table may leave: which rows, which operations, and the masks of their columns.

Others use `row_selection` (what is made of one row) and `selected_shape` (a shape that is given nothing else).
"""
