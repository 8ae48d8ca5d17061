# C types for none.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_connector.interfaces.admitted_change cimport AdmittedChange
from helenus_connector.interfaces.resolved_key cimport ResolvedKey
from helenus_schemas.codec.wire_bytes cimport read_long
from helenus_schemas.event.own_format cimport Match

cdef object _RANGE, _TABLE, _LOG
cdef int _WRITTEN, _EXPIRY
cdef Py_ssize_t _MOST_HEADS, _GROUP, _IDS_BYTES, _TOPIC, _PARTITION

@cython.locals(match=Match, cells=bytes, name=bytes, first=AdmittedChange)
cpdef bint take_written(AdmittedChange admitted, dict first_copies, list written) except -1

cdef class CellResolver:
    cdef public object pattern
    cdef object _table, _known, _dropped_at
    cdef bytes _latest
    cdef set _heads
    cdef Py_ssize_t _head_bytes

    @cython.locals(resolved_key=ResolvedKey, cells=bytes, head=bytes)
    cpdef ResolvedKey resolve(self, AdmittedChange admitted)

@cython.locals(match=Match, scope=object, cells=bytes, resolved=ResolvedKey)
cdef ResolvedKey begin_resolved(AdmittedChange admitted)

@cython.locals(size=cython.longlong, offset=Py_ssize_t)
cdef bytes quick_head(bytes cells)

@cython.locals(group=list, outdated=cython.longlong, admitted=AdmittedChange, resolved=ResolvedKey)
cpdef tuple resolve_group(CellResolver cells, object changes)

@cython.locals(published=cython.longlong, dead_lettered=cython.longlong, resolved=ResolvedKey)
cpdef tuple count_copies(object group)

@cython.locals(ids=dict, admitted=AdmittedChange, topic_partition=tuple, names=list, name=bytes)
cpdef dict ids_by_partition(object changes)
