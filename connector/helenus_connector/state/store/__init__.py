"""Where operators with state keep what they know of a place: Spark's state store, and what lies on it.

Others use `spark_store` (Spark's map state as a `Store`), `pages` (keys that lie eight to a page), `keyed_store` (a
store that lists its keys), `calendar` (what is due when), `packing` (bytes of bytes) and `rocksdb` (Spark's settings
for it).
"""
