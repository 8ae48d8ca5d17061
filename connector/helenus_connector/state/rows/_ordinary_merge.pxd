# C types for _ordinary_merge.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_connector.state.rows._row_update cimport RowUpdater
from helenus_schemas.codec.wire_bytes cimport read_long
from helenus_schemas.event.own_format cimport Match, match_cells

cdef object _new, _ROW
cdef Py_ssize_t _IDS_END, _SCOPE

cdef class OrdinaryMerger:
    cdef object _row_store, _check, _partition
    cdef RowUpdater _updater
    cdef bint _has_statics, _has_partitions, _is_on
    cdef dict _plans
    cdef public set nodes

    @cython.locals(match=Match, cells=bytes, name=bytes, mutation=bytes, size=cython.longlong, offset=Py_ssize_t, stored=bytes, page=cython.longlong)
    cpdef object merge(self, object report)

    @cython.locals(head=bytes)
    cdef object _columns_of(self, bytes cells, Py_ssize_t end)
