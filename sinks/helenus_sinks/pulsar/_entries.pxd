# C types for _entries.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython

cdef bytes _NO_KEY, _NO_VALUE
cdef tuple _SMALL, _SIZES
cdef dict _names
cdef Py_ssize_t _MAX_CACHED_NAMES

@cython.locals(size=Py_ssize_t, name=str, content=bytes)
cpdef object size_of(bytes key, bytes value, object headers)

cpdef bytes batch(object records, bint text_key)

@cython.locals(data=bytes, size=bytes, null=bytes, encoded=bytes, count=Py_ssize_t)
cpdef bytes message(bytes key, bytes value, object headers, bint text_key)

@cython.locals(start=bytes, encoded=bytes, size=bytes)
cdef bytes _property(str name, bytes content)

@cython.locals(encoded=bytes)
cdef bytes _varint(unsigned long long number)
