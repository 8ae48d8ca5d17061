# C types for _change_pack.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython

cdef object _ROW, _new, _RowChange, _Event

cdef class _RowRun:
    cdef object topic, partition
    cdef tuple names
    cdef list keys, ops, befores, afters, write_times, expiries, offsets, timestamps, event_keys, values

    @cython.locals(size=Py_ssize_t, before_values=tuple, after_values=tuple, value=bytes)
    cdef Py_ssize_t add(self, object change) except -2

    cdef tuple fields(self)

cdef class _Packer:
    cdef list parts
    cdef _RowRun run
    cdef public Py_ssize_t count
    cdef Py_ssize_t size

    @cython.locals(run=_RowRun, size=Py_ssize_t)
    cpdef bint add(self, object change) except -1

    cdef object end_run(self)

    cpdef bytes dumps(self)

cpdef list unpack_changes(bytes pack)

@cython.locals(names=tuple, keys=list, ops=list, befores=list, afters=list, write_times=list, expiries=list, offsets=list, timestamps=list, event_keys=list, values=list, index=Py_ssize_t)
cdef object _unpack_run(tuple fields, list changes)

@cython.locals(row=dict, index=Py_ssize_t)
cdef object _to_row(tuple names, tuple values)

@cython.locals(size=Py_ssize_t)
cdef Py_ssize_t _count_values(tuple values)
