"""The agent does the same with Pulsar as with Kafka: the tests of test_live.py there."""

from __future__ import annotations

import pytest
from agent.test_live import (
    test_broker_away,
    test_every_statement,
    test_killed_anywhere,
    test_stopped_while_the_broker_is_away,
)
from agent.test_pulsar_live import live, servers

__all__ = [
    "live",
    "servers",
    "test_broker_away",
    "test_every_statement",
    "test_killed_anywhere",
    "test_stopped_while_the_broker_is_away",
]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
