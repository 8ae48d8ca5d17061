"""Waiting until each connector is through its events, and nothing waits in it."""

from __future__ import annotations

import time
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.chaos.cluster import ChaosCluster
from bench.chaos.compare import Finding
from bench.chaos.modes import Mode
from bench.chaos.service import Service

PATIENCE_S = 720.0
"""What no read can prove waits for ten times `settle.min.age.ms`, at most; a busy machine takes its time too."""
_STILL_S = 8.0
"""So long no topic grows: `state` publishes the end of a TTL within two seconds or so."""
_TIMEOUT_S = 15.0


def wait_quiet(cluster: ChaosCluster) -> list[Finding]:
    """Return what is against a connector that does not come to an end, or whose task failed; such a task is restarted,
    as docs/failures.md has it.
    """
    findings: list[Finding] = []
    restarted: set[str] = set()
    reasons: dict[str, str] = {}
    ends: dict[str, int] = {}
    still_since = time.monotonic()
    limit = time.monotonic() + PATIENCE_S
    while time.monotonic() < limit:
        reasons = {}
        for mode in cluster.modes:
            reason = _reason(cluster, mode, findings, restarted)
            if reason:
                reasons[mode.name] = reason
        before, ends = ends, _ends(cluster)
        if reasons or ends != before:
            still_since = time.monotonic()
        elif time.monotonic() - still_since >= _STILL_S:
            return findings
        time.sleep(1)
    return findings + [Finding(name, "not quiet", reason) for name, reason in reasons.items()]


def _reason(cluster: ChaosCluster, mode: Mode, findings: list[Finding], restarted: set[str]) -> str:
    """Return why a mode's connector is not quiet; empty if it is."""
    worker = cluster.leader(mode)
    if worker is None:
        return "no worker leads"
    try:
        return _failure(worker, mode, findings, restarted) or _backlog(cluster, worker, mode)
    except (OSError, ValueError, KafkaException) as error:
        return f"{type(error).__name__}: {error}"


def _failure(worker: Service, mode: Mode, findings: list[Finding], restarted: set[str]) -> str:
    status = worker.get_json(f"/connectors/{mode.connector}/status")
    failed = [task for task in status["tasks"] if task["state"] == "FAILED"]
    if failed and mode.name not in restarted:
        findings.append(Finding(mode.name, "failed", str(failed[0].get("trace", ""))[:600]))
        restarted.add(mode.name)
        with suppress(OSError):
            worker.post(f"/connectors/{mode.connector}/restart?includeTasks=true")
    return "its task failed" if failed else ""


def _backlog(cluster: ChaosCluster, worker: Service, mode: Mode) -> str:
    offsets = worker.get_json(f"/connectors/{mode.connector}/offsets")["offsets"]
    position = sum(entry["offset"]["offset"] for entry in offsets)
    end = _end(cluster, f"events-{mode.topic_table}")
    if position < end:
        return f"{end - position} events are unread"
    for metric in ("keys_unconfirmed", "gate_waiting_events"):
        if waiting := worker.total(f"helenus_connector_{metric}", mode.connector):
            return f"{metric}: {waiting:.0f}"
    return ""


def _ends(cluster: ChaosCluster) -> dict[str, int]:
    ends = {}
    for mode in cluster.modes:
        for topic in (f"events-{mode.topic_table}", f"data-{mode.topic_table}"):
            with suppress(KafkaException, KeyError):
                ends[topic] = _end(cluster, topic)
    return ends


def _end(cluster: ChaosCluster, topic: str) -> int:
    """Return how many offsets all partitions of a topic have. Raises KafkaException."""
    consumer = Consumer({**cluster.status.kafka(), "group.id": "chaos-ends", "log_level": 0})
    try:
        partitions = consumer.list_topics(topic, _TIMEOUT_S).topics[topic].partitions
        return sum(
            consumer.get_watermark_offsets(TopicPartition(topic, partition), _TIMEOUT_S)[1] for partition in partitions
        )
    finally:
        consumer.close()
