"""`state=rows`: the rows of a table, merged from the cells of its events, with the row before each change and after it.

Others use `query` (the streaming query of one table) and `rebuild` (the whole data topic once more).
"""
