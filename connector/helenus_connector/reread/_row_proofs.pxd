# C types for _row_proofs.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_connector.cassandra_rows.row_images cimport signed_64
from helenus_connector.reread._key_read cimport KeyRead

cdef bint _compiled
cdef object _Proof
cdef tuple _OF_ROWS
cdef Py_ssize_t _WRITE_TIME, _TIMES, _TIMED, _EXPIRES, _CHANGE_TIME, _CHANGE_EFFECT
cdef long long _LIVE, _UNSURE, _ANY_REPORTER

@cython.locals(group=list, topic_partition=tuple, partition_has_deletions=bint, key_read=KeyRead)
cpdef list prove_row_reads(
    object reads_by_key, list answers, object repeated_reads, object start, long long min_reporters,
    object count_replicas, object has_deletions, object may_show_shadowed, bint shows_all_times, object prepare
)

cpdef object set_record_times(KeyRead key_read, object image, bint shows_all_times)

cpdef object first_expiry(KeyRead key_read, object image)

@cython.locals(unproven=dict, effect=cython.longlong)
cdef object prove_row_read(KeyRead key_read, object image, long long min_reporters, object count_replicas)

@cython.locals(i=Py_ssize_t, bits=tuple)
cdef bint shows_write(object image, long long time, long long effect) except -1
