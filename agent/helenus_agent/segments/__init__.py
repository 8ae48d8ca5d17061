"""Which segments there are, which to read next, what is lost of them, and where they go at the end.

For others: `segment_queue` (the segments of cdc_raw), `headroom` (how full it is), `gaps` (losses, found or possible),
`removal` and `transfer` (finished segments leave cdc_raw), `reprocess` (quarantined ones come back).
"""
