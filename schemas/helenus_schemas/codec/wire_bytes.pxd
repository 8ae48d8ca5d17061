# C types for wire_bytes.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython

@cython.locals(zigzagged=cython.ulonglong, shift=int, byte=cython.ulonglong)
cpdef (long long, Py_ssize_t) read_long(bytes data, Py_ssize_t offset)
