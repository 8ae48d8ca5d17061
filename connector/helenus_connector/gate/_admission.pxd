# C types for _admission.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_connector.gate._slots cimport CacheEntry, Reporter, Slots, change_id
from helenus_connector.interfaces.admitted_change cimport AdmittedChange
from helenus_schemas.event.own_format cimport Match, is_of_node, match_own_format

cdef unsigned int _PUBLISHED
cdef Py_ssize_t _PARTITION, _KEY, _VALUE, _SHORT_KEY

cdef class Admission:
    cdef public Py_ssize_t index
    cdef public long long confirmed
    cdef public dict values, paused
    cdef object _codec, _stopped, _count_report, _note_confirmed_copy, _read_key
    cdef bint _grows

    @cython.locals(
        count=Py_ssize_t, partition=object, reporter=Reporter, value=bytes, key=bytes, match=Match,
        change_name=bytes, entry=CacheEntry, change_admitted=AdmittedChange, segment=cython.longlong, position=cython.longlong,
    )
    cpdef admit_events(self, list events, Py_ssize_t start, Slots cache, list admitted)

    @cython.locals(values=tuple, admitted=AdmittedChange)
    cdef AdmittedChange _take_first_report(
        self, object event, Match match, bytes key, bytes change_name, CacheEntry entry, Slots cache, Reporter reporter
    )

    @cython.locals(values=tuple)
    cdef tuple _decode_key(self, bytes key)
