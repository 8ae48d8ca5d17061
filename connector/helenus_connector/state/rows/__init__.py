"""`state=rows`: the rows of a table, merged from the cells of its events, with the row before each change and after it.

Other packages use `query` (the streaming query of one table) and `rebuild` (rebuilds the whole data topic).
"""
