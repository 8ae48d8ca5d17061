"""Avro schemas of a table's records: `build` makes them, `compare` says whether a new one may follow an old one,
`resolution` whether one takes the values of another, `references` puts in place the types that others define, and
`canonical` gives their text in Java's form, and their GUIDs.
"""
