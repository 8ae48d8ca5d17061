"""Which events go to the message broker, and which of its topics refuse them.

For others: `outbox` (appending events to topics), `notices` (events of whole tables), `refused_topics` (tables that are
left out until their topics accept records again), `change_spans` (the traces of changes).
"""
