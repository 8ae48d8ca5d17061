"""Stand-ins for servers, for tests of what is built on the connector: everything is in memory, and fails on request.

The connector itself never imports this package. Its own tests use:

- `log`: a `MemoryLog` that is written to, and a `FaultyLog` around any Log, whose calls fail when a test says so.
- `broker`: a `MemoryPlanner` and `Message`s, for code that reads topics.
- `cassandra`: a `Session` that answers statements from a function, and a `MemoryReader` with the rows of a dict.
- `registry`: a `MemoryRegistry`, and a `RegistryClient` where the real `Registry` is under test.
- `reach` of the failpoints: `HELENUS_FAILPOINT=name` kills a process at the point of this name, as kill -9 would.
"""

from helenus_schemas.service.failpoints import reach

__all__ = ["reach"]
