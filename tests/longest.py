"""The order of test files: what takes longest first, so that no worker ends long after the others.

Files with servers of their own come before those that share a stack: no shared stack runs beside them. Files that are
joined by a + are a group: they run one after the other in one worker, and share what tests/shared_servers.py keeps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
GROUPS = """
agent/test_live+agent/test_schema_live+agent/test_state_store_live stack/test_demo stack/test_stack
agent/test_secure+agent/test_statements_live+integration/test_secure_connector+integration/test_replicate_secure
integration/test_secure_pulsar
agent/test_pulsar_live+agent/test_pulsar_same_live+stack/test_pulsar+sinks/test_pulsar+connector/test_pulsar_events+\
sinks/test_pulsar_java+connector/test_pulsar_journal+connector/test_pulsar_group_live+stack/test_readers
sinks/test_kafka+connector/test_kafka_live+connector/test_group_live+connector/test_replicator_live+\
integration/test_recipe_topic
agent/test_modes_live agent/test_versions agent/test_property_live

integration/test_state+integration/test_state_rows+integration/test_many_connectors+integration/test_verify+\
integration/test_outages
integration/test_connect_rest+integration/test_jdbc_sink+integration/test_recipes+integration/test_datastax_scenarios+integration/test_records+\
integration/test_evolution+integration/test_path+integration/test_envelope+integration/test_gate_one_node+\
integration/test_cep44+integration/test_debezium_cassandra+integration/test_transforms+integration/test_hidden_values
integration/test_cassandra_versions integration/test_upgrade
integration/test_exactly_once+integration/test_worker_group+integration/test_worker_group_state+\
integration/test_worker_group_s3
integration/test_snapshot
integration/test_failures integration/test_schema_topic integration/test_pulsar_edges
integration/test_worker_group_pulsar integration/test_spark_cluster integration/test_yarn integration/test_replicate
integration/test_evidence integration/test_debezium_file integration/test_bad_input integration/test_cells
integration/test_statements integration/test_schema_stores
integration/test_groups integration/test_large integration/test_nodes_away integration/test_busy_machine
integration/test_traces integration/test_any_spark
integration/test_oldest_driver integration/test_pulsar_brokers integration/test_opensearch

docs/test_recipe_stores
agent/test_operations connector/test_rest connector/test_rest_hostile agent/test_hostile_clients agent/test_cli
agent/test_large_events connector/test_verify connector/test_state_replicas
connector/test_gate_simulated connector/test_snapshots connector/test_registry test_mistakes stack/test_rerun_failed
sinks/test_kafka_topics agent/test_agent connector/test_connectors connector/test_cli connector/test_page
sinks/test_pulsar_client connector/test_source stack/test_cli stack/test_process connector/test_ordinary agent/test_fuzz
connector/test_convergence connector/test_logging agent/test_decoder agent/test_fuzz_segment
""".split()
"""Those with servers of their own, those that share a stack, and those without servers."""
LONGEST = [name for group in GROUPS for name in group.split("+")]
_GROUP_OF = {TESTS / f"{name}.py": group for group in GROUPS for name in group.split("+")}


def group(path: Path) -> str:
    """The name of a file's group; a file that is in none is one by itself."""
    return _GROUP_OF.get(path, str(path))


def put_first(items: list[pytest.Item]) -> None:
    """Sort tests by their file's place in LONGEST; what is not there keeps its order after it."""
    places = {TESTS / f"{name}.py": index for index, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def scheduler(config: pytest.Config, log: Any) -> Any:
    """xdist's for `--dist loadfile`, with groups in place of files."""
    from xdist.scheduler import LoadFileScheduling

    class ByGroup(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(TESTS.parent / nodeid.partition("::")[0])

    return ByGroup(config, log)
