# C types for _slots.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython

cdef bint _compiled
cdef Py_ssize_t _SIZE, _SET_SIZE
cdef unsigned int _CONFIRMED, _BY_AGE

cdef object _EMPTY

cpdef bytes change_id(bytes key, bytes scope, bytes digest)

cdef class CacheEntry:
    cdef public unsigned long long nodes
    cdef public unsigned int flags, repeats
    cdef public Py_ssize_t offset
    cdef public object admitted

cdef class Reporter:
    cdef public bytes name
    cdef public unsigned long long bit
    cdef public Py_ssize_t offset
    cdef public long long segment, position, last_segment, last_position
    cdef public bint is_heard

    cpdef bint is_new(self, long long segment, long long position)

    cpdef bint is_newest(self, long long segment, long long position)

    cpdef note(self, long long segment, long long position)

cdef class Slots:
    cdef object _data
    cdef unsigned char[::1] _view
    cdef Py_ssize_t _head
    cdef unsigned long long _sets
    cdef double _expire
    cdef public dict _changed_entries

    cpdef use(self, data)

    @cython.locals(cached=CacheEntry)
    cpdef CacheEntry look(self, bytes change)

    @cython.locals(has_reported=bint, is_rewrite=bint)
    cpdef bint hears(self, CacheEntry entry, Reporter reporter, long long segment, long long position)

    cpdef double pause(self, CacheEntry entry) except? -1

    cpdef report(self, bytes change, CacheEntry entry, unsigned long long bit)

    @cython.locals(change=bytes, entry=CacheEntry)
    cpdef mark(self, object changes, unsigned int flags)

    @cython.locals(change=bytes, entry=CacheEntry, offset=Py_ssize_t)
    cpdef keep(self)

    @cython.locals(offset=Py_ssize_t, start=Py_ssize_t, end=Py_ssize_t)
    cpdef Py_ssize_t slot(self, bytes name)

    @cython.locals(start=Py_ssize_t, best=Py_ssize_t, offset=Py_ssize_t, least=cython.ulonglong, time_s=cython.ulonglong)
    cpdef Py_ssize_t oldest(self, bytes name)

    @cython.locals(offset=Py_ssize_t, nodes=cython.ulonglong, when=cython.ulonglong, flags=cython.ulonglong)
    cdef CacheEntry _find(self, bytes change)

    @cython.locals(number=cython.ulonglong, i=int)
    cdef Py_ssize_t _start(self, bytes name)

    @cython.locals(i=int)
    cdef bint _is_slot_of(self, bytes name, Py_ssize_t offset)

    @cython.locals(number=cython.ulonglong, i=int)
    cdef unsigned long long _number(self, Py_ssize_t offset, int size)

    @cython.locals(i=int, nodes=cython.ulonglong, flags=cython.ulonglong)
    cdef _write(self, Py_ssize_t offset, bytes change, CacheEntry entry, long long now)
