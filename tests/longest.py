"""The order of test files: what takes longest first, so that no worker ends long after the others.

Files with servers of their own come before those that share a stack: no shared stack runs beside them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LONGEST = """
agent/test_live agent/test_schema_live stack/test_demo stack/test_stack integration/test_secure_connector
agent/test_pulsar_live integration/test_secure_pulsar agent/test_secure sinks/test_pulsar sinks/test_kafka
connector/test_pulsar_events agent/test_modes_live agent/test_versions agent/test_property_live

integration/test_failures integration/test_datastax_scenarios integration/test_many_connectors
integration/test_records integration/test_spark_cluster integration/test_connect_rest integration/test_evolution
integration/test_snapshot integration/test_verify integration/test_pulsar_edges integration/test_jdbc_sink
integration/test_path integration/test_outages integration/test_large integration/test_nodes_away
integration/test_evidence

agent/test_operations agent/test_fuzz connector/test_convergence connector/test_verify agent/test_cli
stack/test_again connector/test_logging agent/test_decoder agent/test_fuzz_segment
""".split()
"""Those with servers of their own, those that share a stack, and those without servers."""


def put_first(items: list[pytest.Item]) -> None:
    """Sort tests by their file's place in LONGEST; what is not there keeps its order after it."""
    places = {TESTS / f"{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
