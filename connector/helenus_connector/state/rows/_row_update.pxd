# C types for _row_update.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_connector.state.rows._row_bytes cimport read_size
from helenus_schemas.codec.wire_bytes cimport read_long
from helenus_schemas.event.row_cursor cimport RowCursor

cdef object _pack_time, _unpack_time, _new
cdef int _VERSION, _DOUBTFUL
cdef long long _NO_TIME, _NEVER_EXPIRES
cdef Py_ssize_t _MUTATION_BYTES, _OTHER_MUTATIONS_BYTES
cdef list _BYTES
cdef tuple _SHORT
cdef long long _SHORT_NUMBERS

cdef class RowUpdater:
    cdef list _names, _fields, _cell_names, _times, _deleted, _ttls, _expiries, _contents, _positions
    cdef dict _indexes, _nulls, _values
    cdef RowCursor _cursor
    cdef Py_ssize_t _count
    cdef long long _gc_grace_s, _now, _purge_clock, _horizon, _disturbances
    cdef bint _trusts_absence, _has_liveness, _has_bound, _has_live_cell
    cdef long long _bound, _liveness_time, _liveness_ttl, _liveness_expires, _page, _scheduled_at, _proven_up_to
    cdef bytes _recent

    cpdef begin(self, long long now, long long purge_clock, long long horizon, long long disturbances, bint trusts_absence)

    cpdef object merge(self, tuple columns, bytes data, Py_ssize_t offset, bytes mutation, bytes stored, long long page)

    @cython.locals(was_live=bint, time_before=cython.longlong, expires_before=cython.longlong, before=object, is_live=bint, write_time=cython.longlong, expires=cython.longlong, after=object, is_changed=bint, due_at=cython.longlong, row=bytes)
    cdef object _merge(self, tuple indexes, tuple widths, bytes data, Py_ssize_t offset, bytes mutation, bytes stored, long long page)

    @cython.locals(count=Py_ssize_t, offset=Py_ssize_t, flags=int, time=cython.longlong, bound=cython.longlong, cell_count=cython.longlong)
    cdef bint _load(self, bytes stored, long long page) except -1

    @cython.locals(indexes=dict, time=cython.longlong, number=Py_ssize_t, flags=int, start=Py_ssize_t, size=cython.longlong, ttl=cython.longlong, expires=cython.longlong, content=bytes)
    cdef bint _load_cells(self, bytes stored, Py_ssize_t offset, long long cell_count, long long previous_time) except -1

    cdef int _put(self, Py_ssize_t number, object index, object time, bytes content, object ttl, long long expires, object deleted_at, int has_expiry) except -1

    @cython.locals(cursor=RowCursor, low=cython.longlong, low_deletion=cython.longlong, low_ttl=cython.longlong, size=cython.longlong, column_count=Py_ssize_t, is_changed=bint, column=Py_ssize_t)
    cdef bint _update(self, tuple indexes, tuple widths, bytes data, Py_ssize_t offset) except -1

    @cython.locals(cursor=RowCursor, time=cython.longlong)
    cdef bint _update_liveness(self) except -1

    @cython.locals(cursor=RowCursor, time=cython.longlong, number=Py_ssize_t, content=bytes, expires=object)
    cdef bint _update_cell(self, object index) except -1

    @cython.locals(bound_s=cython.longlong, number=Py_ssize_t, cell_time=cython.longlong, is_older=bint)
    cdef bint _replaces_guess(self, long long time) except -1

    @cython.locals(now=cython.longlong, newest=cython.longlong, first_expiry=cython.longlong, is_live=bint, expires=cython.longlong, values=dict, contents=list, names=list, indexes=list, number=Py_ssize_t, content=object, time=cython.longlong)
    cdef (bint, long long, long long) _show(self)

    @cython.locals(now=cython.longlong, next_due=cython.longlong, expires=cython.longlong, number=Py_ssize_t, content=object)
    cdef long long _next_due(self) except? -1

    cdef object _cell(self, Py_ssize_t number)

    @cython.locals(recent=bytes, flags=int, parts=list, previous_time=cython.longlong, cell_count=Py_ssize_t, number=Py_ssize_t, time=cython.longlong, expires=cython.longlong, content=bytes)
    cdef bytes _dump(self, bytes mutation)

cdef bytes _number_bytes(long long number)
