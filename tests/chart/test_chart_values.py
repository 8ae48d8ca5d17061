"""Values of the chart that can't work are refused in one message, and no secret gets into a manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
from chart import rendering
from chart.manifest_schemas import VERSIONS
from chart.rendering import CHART, HELM, VALUES, pick, read
from connector.test_rest import SECRET

from helenus_agent.config import AgentSettings
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_schemas.settings import masking

pytestmark = pytest.mark.integration  # downloads Helm's library

KAFKA = "bootstrap.servers=kafka:9092\n"
CONNECTOR = "name=a\nkeyspace=ks\ntable=a\n"
MISTAKES: list[tuple[Mapping[str, Any], str]] = [
    ({"connector": {"replica": 2}}, "'replica' not allowed"),
    ({"connector": {"replicas": "2"}}, "got string, want integer"),
    ({"connector": {"replicas": 2}}, "connector.replicas: more than 1 need connector.groupId"),
    ({"connector": {"stateClaim": "state"}}, "connector.stateClaim: leave it out without connector.groupId"),
    ({"connector": {"stateClaim": "a/b", "groupId": "g"}}, "does not match pattern"),
    ({"connector": {"stateUrl": "s3a://b/x"}}, "connector.stateUrl: it needs connector.groupId"),
    (
        {"connector": {"stateUrl": "s3a://b/x", "stateClaim": "state", "groupId": "g"}},
        "connector.stateUrl: leave connector.stateClaim out",
    ),
    ({"connector": {"stateUrl": "/mnt/x", "groupId": "g"}}, "does not match pattern"),
    (
        {"connector": {"persistence": {"enabled": False}}},
        "connector.persistence.enabled: false needs connector.groupId",
    ),
    ({"connector": {"properties": "group.id=g\n"}}, "connector.properties: leave group.id out"),
    ({"connector": {"properties": "state.checkpoint.dir=/x\n"}}, "leave state.checkpoint.dir out"),
    ({"connector": {"properties": "a=b\n  listeners = x\n"}}, "connector.properties: leave listeners out"),
    ({"connector": {"properties": "standby.timeout.ms=-1\n"}}, "leave standby.timeout.ms out"),
    ({"connector": {"connectors": {"a/b": ""}}}, "does not match pattern"),
    ({"connector": {"env": [{"name": "KAFKA_PASSWORD", "value": SECRET}]}}, "give valueFrom.secretKeyRef"),
    ({"connector": {"secrets": ["a", "a"]}}, "are equal"),
    ({"connector": {"rest": {"port": 83}}}, "minimum"),
    ({"agent": {"mode": "daemonset"}}, "agent.daemonset.runAsUser: give the number of Cassandra's user"),
    ({"agent": {"mode": "daemonset", "daemonset": {"runAsUser": 0, "runAsGroup": 5}}}, "minimum"),
    ({"agent": {"mode": "sidecar", "properties": "state.dir=/x\n"}}, "agent.properties: leave state.dir out"),
    ({"agent": {"mode": "sidecar"}, "podMonitor": {"enabled": True}}, "agent.sidecar.podLabels: name labels"),
    ({"agent": {"mode": "both"}}, "'none', 'sidecar', 'daemonset'"),
]


def test_mistakes_are_one_message() -> None:
    requests = [{"values": values} for values, _ in MISTAKES]
    for (values, expected), answer in zip(MISTAKES, rendering.ask(requests), strict=True):
        assert expected in answer.get("error", ""), (values, answer)
        assert SECRET not in answer["error"]


def secret_keys() -> list[str]:
    """Each key of ours that is a secret, and those that users pass on."""
    models = (WorkerSettings, ConnectorSettings, AgentSettings)
    fields = {
        (name.replace("_", "."), str(field.annotation))
        for model in models
        for name, field in model.model_fields.items()
    }
    own = {key for key, kind in fields if "Secret" in kind}
    passed_on = ["kafka.sasl.password", "producer.sasl.password", "kafka.ssl.key.password", "kafka.ssl.key.pem"]
    passed_on += ["kafka.sasl.oauthbearer.client.secret", "kafka.sasl.jaas.config", "spark.authenticate.secret"]
    return sorted(own | set(passed_on))


def test_a_secret_in_clear_is_refused() -> None:
    keys = secret_keys()
    assert {"cassandra.password", "pulsar.auth.token", "rest.basic.auth.user.info"} <= set(keys)
    lines = [line for key in keys for line in (f"{key}={SECRET}", f"  {key} : {SECRET}", f"{key}\\\n  ={SECRET}")]
    # A login in clear, also with the sign by which references begin.
    logins = (f"me:{SECRET}", f"me:${SECRET}", f"${{env:ME}}:{SECRET}$")
    lines += [f"value.converter.schema.registry.url=https://{login}@registry:8081" for login in logins]
    requests = []
    for line in lines:
        text = f"{KAFKA}{line}\n"
        requests.append({"values": {"connector": {"properties": text}}})
        requests.append({"values": {"connector": {"connectors": {"a": CONNECTOR + line}}}})
        requests.append({"values": {"agent": {"mode": "sidecar", "properties": text}}})
    for request, answer in zip(requests, rendering.ask(requests), strict=True):
        assert "error" in answer, request
        assert SECRET not in answer["error"]


def test_what_is_no_secret_is_taken() -> None:
    """References, and keys that only sound like one."""
    text = KAFKA + "kafka.sasl.password=${file:/etc/helenus/secrets/a/b:c}\nkafka.sasl.username=me\n"
    text += "kafka.sasl.oauthbearer.token.endpoint.url=https://login.example.com/token\n# password=never read\n"
    text += "spark.authenticate.secret = ${env:SPARK_SECRET}\nkafka.ssl.key.location=/etc/helenus/secrets/a/key.pem\n"
    connector = CONNECTOR + "transforms=tokens\ntransforms.tokens.fields=card\nmessage.key.columns=id\n"
    connector += (
        "value.converter.schema.registry.url=https://registry:8081,http://${env:A}:${file:/b:c}@other:8081/path\n"
    )
    assert rendering.error({"connector": {"properties": text, "connectors": {"a": connector}}}) == ""


@pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)
def test_no_manifest_has_a_secret(path: Any) -> None:
    """What is in ConfigMaps and variables, by Helenus's own rule of what is one."""
    for manifest in rendering.of_file(path.stem):
        assert manifest["kind"] != "Secret"
        if manifest["kind"] != "ConfigMap":
            continue
        for name, text in manifest["data"].items():
            pairs = [line.partition("=")[::2] for line in text.splitlines() if name.endswith(".properties")]
            clear = [key for key, value in pairs if masking.is_secret(key, value) and not masking.refers(value)]
            assert clear == []


def test_the_page_names_what_there_is() -> None:
    """Each example, and the releases whose schemas are used."""
    page = (rendering.ROOT / "docs" / "kubernetes.md").read_text()
    assert [path.name for path in VALUES if f"`{path.name}`" not in page] == []
    assert f"Kubernetes {', '.join(VERSIONS[:-1])} and {VERSIONS[-1]}" in page
    oldest = read(CHART / "Chart.yaml")["kubeVersion"]
    assert oldest == f">={VERSIONS[0]}.0-0"
    assert f"Kubernetes {VERSIONS[0]} or later" in page


def test_the_schema_knows_every_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.Draft7Validator(schema).validate(read(CHART / "values.yaml"))

    def compare(values: Mapping[str, Any], part: Mapping[str, Any], where: str) -> None:
        if part.get("additionalProperties") is not False:
            return
        assert set(values) == set(part["properties"]) - {"global"}, where
        for key, value in values.items():
            if isinstance(value, dict):
                compare(value, part["properties"][key], f"{where}.{key}")

    compare({**read(CHART / "values.yaml")}, schema, "values")


def test_every_value_is_in_the_full_example_or_a_default() -> None:
    """Each key of `connector` has an example."""
    defaults, full = read(CHART / "values.yaml")["connector"], read(HELM / "values" / "full.yaml")["connector"]
    assert set(defaults) - set(full) == {"enabled", "affinity", "podDisruptionBudget"}


def test_a_changed_file_restarts_the_pods() -> None:
    values = read(HELM / "values" / "minimal.yaml")

    def checksum(changed: Mapping[str, Any]) -> str:
        template = pick(rendering.of_values(changed), "StatefulSet")["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    first = checksum(values)
    assert checksum({**values, "networkPolicy": {"enabled": False}}) == first
    values["connector"]["connectors"]["shop-orders"] += "tasks.max=2\n"
    second = checksum(values)
    values["connector"]["properties"] += "batch.interval.ms=100\n"
    assert len({first, second, checksum(values)}) == 3


def test_what_the_chart_sets_unless_it_is_given() -> None:
    values = {"connector": {"properties": KAFKA + "log.format=text\nspark.driver.memory = 2g\n"}}
    text = pick(rendering.of_values(values), "ConfigMap")["data"]["worker.properties"]
    assert text.count("log.format") == text.count("spark.driver.memory") == 1
    assert "\nspark.master=local[2,4]\n" in text
    assert "\nstartup.timeout.ms=300000\n" in text
