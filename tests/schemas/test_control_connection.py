"""The driver's control connection ends in the local data centre, wherever its first contact point is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cassandra.cluster import NoHostAvailable

from helenus_schemas.service.cassandra import leave_other_data_center


class DriverCluster:
    """A driver's Cluster as it is once connected: its control connection is with a node of `data_center`. A new one is
    with a node of `next_data_center`, if there is one.
    """

    def __init__(self, data_center: str | None, next_data_center: str | None = None) -> None:
        self.data_center, self._next = data_center, next_data_center
        self.control_connection = SimpleNamespace(connect=self._connect)
        self.is_connected = True

    def get_control_connection_host(self) -> SimpleNamespace | None:
        return SimpleNamespace(datacenter=self.data_center) if self.is_connected else None

    def _connect(self) -> None:
        if self._next is None:
            raise NoHostAvailable("Unable to connect to any servers", {})
        self.data_center = self._next


def test_it_leaves_another_data_center() -> None:
    cluster = DriverCluster("dc2", "dc1")
    leave_other_data_center(cluster, "dc1")
    assert cluster.data_center == "dc1"


@pytest.mark.parametrize(("data_center", "local_dc"), [("dc1", "dc1"), ("dc2", None), (None, "dc1"), ("dc2", "")])
def test_it_stays_where_it_is(data_center: str | None, local_dc: str | None) -> None:
    cluster = DriverCluster(data_center, "elsewhere")
    leave_other_data_center(cluster, local_dc)
    assert cluster.data_center == data_center


def test_it_stays_if_no_local_node_answers_or_it_was_lost() -> None:
    cluster = DriverCluster("dc2")
    leave_other_data_center(cluster, "dc1")
    assert cluster.data_center == "dc2"
    cluster.is_connected = False
    leave_other_data_center(cluster, "dc1")
