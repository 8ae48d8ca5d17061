# C types for _ordinary_merge.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_connector.state.rows._row_bytes cimport has_seen
from helenus_connector.state.rows._row_update cimport RowUpdater
from helenus_schemas.codec.wire_bytes cimport read_long
from helenus_schemas.event.own_format cimport Match, match_cells

cdef object _new, _ROW, _RowChange
cdef Py_ssize_t _IDS_END, _SCOPE, _MAX_RUN_BYTES
cdef int _ROW_BYTE

cdef class OrdinaryMerger:
    cdef object _row_store, _check, _partition
    cdef RowUpdater _updater
    cdef bint _has_statics, _has_partitions, _is_on
    cdef dict _plans
    cdef public set nodes
    cdef public long long copies, unchanged

    @cython.locals(changes=list, number=Py_ssize_t, name=bytes, mutation=bytes, stored=bytes, rows=dict, row_bytes=dict, match=Match, size=Py_ssize_t)
    cpdef tuple merge_run(self, object reports, Py_ssize_t start)

    @cython.locals(value=bytes, cells=bytes, size=cython.longlong, offset=Py_ssize_t, page=cython.longlong)
    cdef bint _merge(self, object event, bytes name, bytes key, bytes mutation, object node, Match match, bytes stored, list changes) except -1

    @cython.locals(head=bytes)
    cdef object _columns_of(self, bytes cells, Py_ssize_t end)
