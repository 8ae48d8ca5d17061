# C types for pages.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_connector.state.store.linear_hashing cimport pages_of_keys, parent_page, split_page
from helenus_connector.state.store.packing cimport pack_items, unpack_items

cdef class Pages:
    cdef object _store
    cdef long long _page_count, _key_count, _size
    cdef tuple _saved_header
    cdef dict _loaded_pages
    cdef set _changed

    @cython.locals(numbers=list, pages=dict, values=list, page=dict)
    cpdef list get_many(self, object keys)

    @cython.locals(numbers=list, pages=dict, page=dict, value=bytes)
    cpdef object put_many(self, object values)

    cpdef object remove_many(self, object keys)

    @cython.locals(header=tuple, values=dict, removed=list, page=dict)
    cpdef object flush(self)

    @cython.locals(missing=list, names=list)
    cdef object _load_pages(self, object numbers)

    @cython.locals(page_count=cython.longlong)
    cdef object _add_pages(self)

@cython.locals(items=list, index=Py_ssize_t, values=dict)
cpdef dict entries(bytes page)

@cython.locals(items=list)
cdef list _items_of(dict page)
