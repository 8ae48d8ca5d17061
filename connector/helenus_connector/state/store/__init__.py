"""The store of the operators with state: Spark's state store, and the structures in it.

Other packages use `spark_store` (Spark's map state as a `Store`), `driver_stores` (the
same in a batch that is no job), `pages` (a store with eight keys to a page),
`linear_hashing` (how keys are spread over pages), `keyed_store` (a store that lists its keys), `calendar` (what is due
when), `packing` (lists of bytes as bytes), `versions` (what a later version wrote) and `rocksdb` (Spark's settings for
it).
"""
