# C types for row_images.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython

cdef bint _compiled
cdef object _new, _Image

@cython.locals(images=list, row=tuple, values=tuple, times=tuple)
cpdef list make_images(object rows, Py_ssize_t width, Py_ssize_t end, Py_ssize_t timed, object shown, object expires)

@cython.locals(answers=list, missing=list, count=Py_ssize_t)
cpdef tuple match_keys(list keys, dict images, object normalized, bint is_last)

@cython.locals(best=cython.longlong, has_time=bint, number=cython.longlong)
cpdef object newest_write_time(tuple times)

@cython.locals(number=cython.longlong, i=int)
cpdef long long signed_64(bytes data) except? -1
