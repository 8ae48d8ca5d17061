"""What may be missing since a node was lost with its disk, and no agent can send it: which tokens, written when.

- `loss`: what is asked, and the losses that follow of a connector's tables.
- `gap_events`: have them known to all who read the events topics.
"""
