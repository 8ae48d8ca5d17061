# C types for _ordinary.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_connector.interfaces.admitted cimport Admitted
from helenus_connector.interfaces.resolved cimport Resolved
from helenus_connector.reread._work cimport Work
from helenus_schemas.event.own_format cimport Match

cdef bint _compiled
cdef object _ROW, _PARTITION, _TABLE, _LOG, _NAN, _new, _Image, _Awaited, _Proof
cdef tuple _UNSCANNED, _OF_ROWS
cdef int _WRITTEN, _EXPIRY, _EXPIRED
cdef Py_ssize_t _WRITE_TIME, _TIMES, _TIMED, _EXPIRES
cdef long long _LIVE, _DELETES, _UNSURE

@cython.locals(
    admitted=Admitted, match=Match, has=int, effect=cython.longlong, values=tuple, name=tuple, name_of=bytes,
    awaited=dict, some_asked=bint, is_row=bint, key=bytes, work=Work,
)
cpdef bint take(
    object changes, dict by_name, list taken, object consistency, bint has_rows, object note, object add
) except -1

@cython.locals(found=list, row=tuple, values=tuple, times=tuple)
cpdef list images(object rows, Py_ssize_t width, Py_ssize_t end, Py_ssize_t timed, object shown, object expires)

@cython.locals(answers=list, left=list, count=Py_ssize_t)
cpdef tuple matched(list keys, dict found, object normalized, bint is_last)

@cython.locals(best=cython.longlong, has_one=bint, number=cython.longlong)
cpdef object newest(tuple times)

@cython.locals(group=list, place=tuple, some_deleted=bint, work=Work)
cpdef list read(
    object works, list answers, object more, object start, long long least, object nodes, object has_deletions,
    object is_undone, bint shows_all_times, object prepare
)

@cython.locals(unproven=dict, effect=cython.longlong)
cdef object proof_of(Work work, object image, long long least, object nodes)

@cython.locals(i=Py_ssize_t, bits=tuple)
cdef bint shows(object image, long long time, long long effect) except -1

@cython.locals(number=cython.longlong, i=int)
cdef long long integer(bytes data) except? -1

@cython.locals(found=dict, others=list, members=list, is_row=bint, work=Work)
cpdef tuple rows(object works, bint clustered)

@cython.locals(place=tuple, keys=list, one=Resolved)
cpdef object publishing(object resolved, object published)

@cython.locals(events=cython.longlong, changes=dict, place=tuple, names=list, work=Work)
cpdef long long done(object works, object left, object mark, object rest)

@cython.locals(found=dict, more=dict, work=Work)
cpdef tuple by_key(object works)
