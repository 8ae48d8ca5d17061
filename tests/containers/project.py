"""One of our compose files, up: what the test asks and does to it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

from containers.engine import Engine
from patience import eventually

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
SERVICES = {
    "kafka": ["cassandra", "schema", "kafka", "registry", "agent", "connector", "prometheus"],
    "pulsar": ["cassandra", "schema", "pulsar", "agent", "connector"],
}
# Run in the connector's container, with the libraries that are in its image.
COUNT = {
    "kafka": """
import sys, confluent_kafka as k
c = k.Consumer({"bootstrap.servers": "kafka:29092", "group.id": "look", "enable.partition.eof": True})
topic = "data-shop.orders"
found = 0
for p in c.list_topics(topic, timeout=20).topics[topic].partitions:
    place = k.TopicPartition(topic, p, 0)
    low, high = c.get_watermark_offsets(place, timeout=20)
    c.assign([place])
    while low < high:
        message = c.poll(20)
        if message.error():  # the end: that of a transaction takes an offset
            break
        low = message.offset() + 1
        found += sys.argv[1].encode() in (message.key() or b"")
print(found)
""",
    "pulsar": """
import sys, pulsar
client = pulsar.Client("pulsar://pulsar:6650", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
found = 0
for topic in client.get_topic_partitions("data-shop.orders"):
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    while reader.has_message_available():
        key = reader.read_next(20000).partition_key()
        import base64
        found += sys.argv[1].encode() in base64.b64decode(key)
print(found)
""",
}


class Project:
    """The services of compose/kafka.yaml or compose/pulsar.yaml."""

    def __init__(self, docker: Engine, log: str) -> None:
        self.docker = docker
        self.log = log
        self.services = list(SERVICES[log])
        names = {"kafka": ["kafka.yaml", "observability.yaml"], "pulsar": ["pulsar.yaml"]}[log]
        files = [ROOT / "compose" / name for name in names]
        files += [HERE / "override.yaml", HERE / f"override-{log}.yaml"]
        self._said = ""
        self._files = [word for file in files for word in ("--file", str(file))]

    def compose(self, *arguments: str, seconds: float = 600, check: bool = True) -> str:
        """`docker compose ARGUMENTS`."""
        return self.docker.run("compose", *self._files, *arguments, seconds=seconds, check=check)

    def up(self, *services: str) -> None:
        """Up, and healthy."""
        self.compose("up", "--no-build", "--wait", *(services or self.services), seconds=900)

    def execute(self, service: str, *command: str, check: bool = True) -> str:
        """What a command in the service's container prints."""
        return self.compose("exec", "-T", service, *command, check=check)

    def write(self, customer: str) -> None:
        """README's statement, for another customer."""
        cql = f"INSERT INTO shop.orders (customer, order_id, total) VALUES ('{customer}', 1, 9.5)"
        self.execute("cassandra", "cqlsh", "-e", cql)

    def records(self, customer: str) -> int:
        """How many records of that customer are on the data topic; 0 too while the broker can't be asked."""
        self._said = self.execute("connector", "python", "-c", COUNT[self.log], customer, check=False)
        last = self._said.splitlines()[-1:]
        return int(last[0]) if last and last[0].isdigit() else 0

    def follows(self, customer: str) -> None:
        """Writes a row, and waits for its record."""
        eventually(lambda: self._written(customer), "a write")
        eventually(lambda: self.records(customer), lambda: self.state(), every=2)

    def _written(self, customer: str) -> bool:
        try:
            self.write(customer)
        except AssertionError:
            return False
        return True

    def without_rights(self) -> str:
        """What an agent prints that runs as another user than Cassandra's; it waits 5 s for rights, not 5 minutes."""
        file = "/tmp/agent.properties"
        start = f"sed /^startup/s/=.*/=5000/ /etc/helenus/agent.properties > {file}; exec helenus-agent {file}"
        options = ["--rm", "--no-deps", "--user", "1234:1234", "-T", "--entrypoint", "sh"]
        return self.compose("run", *options, "agent", "-c", start, check=False)

    def targets(self) -> dict[str, str]:
        """What Prometheus finds at the addresses of its file: job -> up, down or unknown."""
        output = self.execute("prometheus", "wget", "-q", "-O-", "http://localhost:9090/api/v1/targets", check=False)
        active = json.loads(output)["data"]["activeTargets"] if output.startswith("{") else []
        return {target["labels"]["job"]: target["health"] for target in active}

    def health(self, service: str) -> str:
        """What Docker's health check of a service says: starting, healthy, unhealthy."""
        container = self.compose("ps", "--quiet", service)
        return self.docker.run("inspect", "--format", "{{.State.Health.Status}}", container.splitlines()[0])

    def ready(self, service: str) -> tuple[int, str]:
        """Status and text of /health/ready at the port that the compose file opens."""
        inner = {"agent": "9400", "connector": "8083"}[service]
        address = self.compose("port", service, inner).splitlines()[0]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{address}/health/ready", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def state(self) -> str:
        """All that may say why something did not come."""
        logs = self.compose("logs", "--tail", "30", "agent", "connector", check=False)
        return f"{self.compose('ps', '--all', check=False)}\n{logs}\nThe topic's count: {self._said}"

    def images(self) -> dict[str, int]:
        """The size of our images in MB."""
        return {
            part: json.loads(self.docker.run("inspect", f"helenus-{part}"))[0]["Size"] // 1_000_000
            for part in ("agent", "connector")
        }
