# C types for linear_hashing.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython

@cython.locals(half=cython.longlong, code=cython.longlong, number=cython.longlong)
cpdef long long page_of_key(bytes key, long long page_count)

@cython.locals(pages=list, half=cython.longlong, code=cython.longlong, number=cython.longlong, key=bytes)
cpdef list pages_of_keys(object keys, long long page_count)

cpdef long long parent_page(long long number)

@cython.locals(moved=list, key=bytes)
cpdef dict split_page(dict parent_keys, long long number)

@cython.locals(power=cython.longlong)
cdef long long _power_of_two(long long number)
