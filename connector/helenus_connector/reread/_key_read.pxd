# C types for _key_read.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
from helenus_connector.interfaces.resolved_key cimport ResolvedKey

cdef class KeyRead(ResolvedKey):
    cdef public object consistency, unconfirmed, read_at, proof, first_expires, oldest, verifying, unseen
    cdef public object deleted_at
    cdef public dict awaited
    cdef public bint has_untimed_rows, is_outdated, is_scanned
