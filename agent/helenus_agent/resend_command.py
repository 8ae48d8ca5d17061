"""`helenus-agent resend`: what it opens, and what it says of each segment."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Collection

from helenus_agent.agent_run import open_log
from helenus_agent.config import AgentSettings
from helenus_agent.node import saved_tables
from helenus_agent.node.cassandra import Cassandra
from helenus_agent.node.offline import SavedNode
from helenus_agent.resend.resender import Resender, ResentSegment, choose_segments
from helenus_agent.resend.source_choice import open_source
from helenus_agent.state import StateDirectory, read
from helenus_schemas.names import counted


def resend_segments(
    settings: AgentSettings,
    names: Collection[str],
    host_id: uuid.UUID | None,
    offline: bool,
    show: Callable[[str], object],
) -> bool:
    """Send archived segments, those of these ids or file names, or all; show a line for each. Return whether all of
    them could be read.

    `host_id`: the node whose log they are, by default the agent's. `offline`: without Cassandra, by what the agent has
    saved. Raises HelenusError.
    """
    with contextlib.ExitStack() as cleanup:
        source = cleanup.enter_context(contextlib.closing(open_source(settings)))
        paths = choose_segments(source.list_segments(), names)
        if not paths:
            show("there are no segments")
            return True
        cassandra: Cassandra | SavedNode
        if offline:
            state = cleanup.enter_context(contextlib.closing(StateDirectory(settings.state_dir)))
            cassandra = SavedNode(state)
        else:
            cassandra = Cassandra(settings)
        cleanup.callback(cassandra.close)
        schema, saved = cassandra.schema(), read(settings.state_dir)
        # Events of before an upgrade to 6.0 have the host id that the agent has saved.
        node_id = host_id or (uuid.UUID(saved.host_id) if saved and saved.host_id else cassandra.node().host_id)
        log = cleanup.enter_context(contextlib.closing(open_log(settings)))
        log.start()
        resender = Resender(settings, schema, saved_tables.load(settings.state_dir)[0], node_id, log)
        show(f"node {node_id}; tables: {', '.join(resender.table_names) or 'none has CDC'}")
        problems = 0
        for resent in resender.resend(source, paths):
            show(format_segment(resent))
            problems += len(resent.problems)
    return not problems


def format_segment(resent: ResentSegment) -> str:
    """Return what became of a segment, as a line, and one for each of its problems."""
    skipped = [f"{reason} {count}" for reason, count in sorted(resent.skipped.items()) if count]
    counts = [counted(resent.events, "event"), *(["skipped: " + ", ".join(skipped)] if skipped else [])]
    lines = [f"{resent.path.name}: {'; '.join(counts)}"]
    return "\n".join([*lines, *(f"  not read, at {problem}" for problem in resent.problems)])
