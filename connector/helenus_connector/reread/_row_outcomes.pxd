# C types for _row_outcomes.py, used when Cython compiles it. A name that is new there and missing here is slow, not wrong.
cimport cython
from helenus_connector.interfaces.resolved_key cimport ResolvedKey
from helenus_connector.reread._key_read cimport KeyRead

@cython.locals(topic_partition=tuple, keys=list, resolved_key=ResolvedKey)
cpdef object note_published(object resolved, object published)

@cython.locals(events=cython.longlong, changes=dict, topic_partition=tuple, names=list, key_read=KeyRead)
cpdef long long mark_confirmed(object reads, object unfinished, object mark, object hand_back)
