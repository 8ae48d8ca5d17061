"""Bytes that become objects or code: only where they come from a worker's own processes, by name and reason.

Whoever may send bytes that are unpickled runs code. `marshal` runs none, but trusts every length.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("agent/helenus_agent", "connector/helenus_connector", "schemas/helenus_schemas", "sinks")
LOADERS = {
    **dict.fromkeys(
        ("pickle", "marshal", "dill", "cloudpickle", "shelve", "joblib"), frozenset({"load", "loads", "open"})
    ),
    "yaml": {"load", "full_load", "unsafe_load"},
    "builtins": {"eval", "exec"},
}
CONNECTOR = "connector/helenus_connector/"
ALLOWED = {
    "control/plan.py": "a file of the driver's, in a directory that its user alone may write",
    "query/_small_batch_process.py": "what the worker sends, by a socket that it alone has the other end of",
    "query/_process_connection.py": "what the process answers that the worker started, by the same socket",
    "query/batch_parts.py": "a file of the driver's, in a directory that its user alone may write",
    "query/handover.py": "what a task of the same query returned",
    "query/event_packs.py": "rows of the worker's own streaming source, over Spark's authenticated connections",
    "state/keys/_operator.py": "rows that a task of the same query packed",
    "state/keys/_plan.py": "a file of the driver's, in a directory that its user alone may write",
    "state/keys/_record_reader.py": "rows that the operator of the same query packed",
    "state/rows/_change_pack.py": "rows that the operator of the same query packed",
    "state/rows/_operator.py": "notes of the worker's own streaming source",
    "state/rows/_publish_task.py": "rows that the operator of the same query packed",
    "state/store/spark_store.py": "answers of Spark's state server, and values that this query put into its state",
    "verify/_engine.py": "what a task of the same job returned",
    "verify/_reduce.py": "rows that a task of the same job made",
}
"""By module of the connector, from where the bytes come."""


def loads_objects(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in LOADERS["builtins"]
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.attr in LOADERS.get(function.value.id, ())
    )


def imports_a_loader(node: ast.AST) -> bool:
    """An import of the function by its name would hide it from the search."""
    return isinstance(node, ast.ImportFrom) and any(
        alias.name in LOADERS.get(node.module or "", ()) or alias.name == "Unpickler" for alias in node.names
    )


def test_only_a_workers_own_bytes_are_unpickled() -> None:
    loading_modules = set()
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if imports_a_loader(node) or (isinstance(node, ast.Call) and loads_objects(node)):
                loading_modules.add(str(path.relative_to(ROOT)))
    assert loading_modules == {CONNECTOR + module for module in ALLOWED}
