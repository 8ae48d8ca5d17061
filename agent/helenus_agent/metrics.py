"""What the agent tells Prometheus."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram, Info

EVENTS = Counter("helenus_agent_events", "Events acknowledged by the broker.", ["table"])
MUTATIONS = Counter("helenus_agent_mutations_read", "Mutations read from the log, of all tables.")
SKIPPED = Counter("helenus_agent_skipped", "Changes that are not told, by reason.", ["reason"])
PROBLEMS = Counter("helenus_agent_undecodable", "Places in the log that could not be read.")
QUARANTINED = Gauge("helenus_agent_quarantined_segments", "Segments in quarantine or bound for it.")
LOST = Counter("helenus_agent_lost_segments", "Segments with changes of CDC tables that vanished unread.")
DONE = Counter("helenus_agent_segments_done", "Segments read to their end, acknowledged and taken away.")
PENDING = Gauge("helenus_agent_segments_pending", "Segments in cdc_raw that are not done with.")
RAW_BYTES = Gauge("helenus_agent_cdc_raw_bytes", "Size of the segments in cdc_raw.")
RAW_LIMIT = Gauge("helenus_agent_cdc_raw_limit_bytes", "cdc_total_space of the node: at this size it refuses writes.")
OLDEST = Gauge("helenus_agent_oldest_unsent_seconds", "Age of the oldest data that is not acknowledged yet.")
FLUSH = Histogram("helenus_agent_flush_seconds", "How long the broker takes to acknowledge what was appended.")
RETRIES = Counter("helenus_agent_retries", "Times that work was done again after an error, by its kind.", ["kind"])
POSITION_SEGMENT = Gauge("helenus_agent_position_segment", "Id of the newest segment with an acknowledged position.")
POSITION_OFFSET = Gauge("helenus_agent_position_offset_bytes", "Acknowledged position in that segment.")
DECODER = Info("helenus_agent_decoder", "How the decoder runs.")
