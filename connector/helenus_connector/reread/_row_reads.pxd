# C types for _row_reads.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_connector.interfaces.admitted_change cimport AdmittedChange
from helenus_connector.reread._key_read cimport KeyRead
from helenus_schemas.event.own_format cimport Match

cdef object _ROW, _PARTITION, _TABLE, _LOG, _NAN, _new, _Awaited
cdef tuple _UNSCANNED
cdef int _WRITTEN, _EXPIRY, _EXPIRED
cdef long long _DELETES

cdef class _ChangeContent:
    cdef object scope, write_time, expires_at, all_expired_at, origin, parts
    cdef long long effect

    @cython.locals(match=Match, has=int)
    cdef object load(self, AdmittedChange admitted)

    @cython.locals(name=bytes, awaited=dict)
    cdef object add_to(self, KeyRead key_read, AdmittedChange admitted)

@cython.locals(
    admitted=AdmittedChange, content=_ChangeContent, name=tuple, asks_ttl=bint, is_row=bint, is_scanned=bint,
    key=bytes, key_read=KeyRead,
)
cpdef bint collect_row_reads(
    object changes, dict by_name, list collected, object consistency, bint has_rows, object note, object add
) except -1

@cython.locals(reads_by_key=dict, repeated_reads=dict, key_read=KeyRead)
cpdef tuple index_by_key(object reads)

@cython.locals(reads_by_level=dict, others=list, members=list, is_row=bint, key_read=KeyRead)
cpdef tuple group_by_level(object reads, bint clustered)
