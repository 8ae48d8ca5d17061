# C types for _row_outcomes.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_connector.interfaces.resolved_key cimport ResolvedKey
from helenus_connector.reread._key_read cimport KeyRead

@cython.locals(place=tuple, keys=list, one=ResolvedKey)
cpdef object note_published(object resolved, object published)

@cython.locals(events=cython.longlong, changes=dict, place=tuple, names=list, work=KeyRead)
cpdef long long mark_confirmed(object works, object left, object mark, object rest)
