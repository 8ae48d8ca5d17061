"""The REST API on a real listener, over the engine that a worker has."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
import structlog
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.files import load
from helenus_connector.config.model import SERVERS, Model
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.connectors import Connectors
from helenus_connector.history import History
from helenus_connector.log.events import Offsets
from helenus_connector.rest import server as rest
from helenus_connector.snapshot.snapshots import Snapshots
from helenus_connector.verify.verifications import Verifications
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import logs
from helenus_schemas.settings.model import Group
from helenus_schemas.settings.properties import ConfigError

PLUGIN = "helenus.CassandraSource"
SECRET = "hunter2"
CONFIG = {"connector.class": PLUGIN, "keyspace": "ks", "table": "a,b", "output.format": "json"}
LOGIN = ("operator", "let:me:in")


def settings(tmp_path: Path, **more: str) -> WorkerSettings:
    keys = {"listeners": "http://127.0.0.1:0", **{key.replace("_", "."): value for key, value in more.items()}}
    return WorkerSettings.from_properties(
        {"bootstrap.servers": "127.0.0.1:1", "checkpoint.dir": str(tmp_path), **keys}, "worker"
    )


def earliest(topics: Sequence[str]) -> Offsets:
    return {topic: {"0": 3, "1": 0} for topic in topics}


class Api:
    """A listener over an engine, and a client of it."""

    def __init__(self, worker: WorkerSettings) -> None:
        self.trouble: str | None = None
        self.failed: str | None = None
        self.connectors = Connectors(worker, earliest)
        self.snapshots = Snapshots(worker, self.connectors)
        self.verifications = Verifications(worker, self.connectors)
        self.history = History()
        self.listener = rest.serve(
            worker,
            self.connectors,
            self.snapshots,
            self.verifications,
            self.history,
            lambda: self.failed or self.trouble,
            lambda: self.trouble,
        )
        self.base = f"{'https' if worker.secure else 'http'}://127.0.0.1:{self.listener.port}"
        self.session = requests.Session()

    def call(self, method: str, path: str, body: Any = None, **more: Any) -> requests.Response:
        return self.session.request(method, self.base + path, json=body, timeout=10, **more)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        answer = self.call(method, path, body)
        return answer.status_code, answer.json() if answer.content else None

    def close(self) -> None:
        self.session.close()
        self.listener.shutdown()


@contextlib.contextmanager
def served(worker: WorkerSettings) -> Iterator[Api]:
    api = Api(worker)
    try:
        yield api
    finally:
        api.close()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with served(settings(tmp_path)) as api:
        yield api


@pytest.fixture
def made(api: Api) -> Api:
    assert api.ask("POST", "/connectors", {"name": "f1", "config": CONFIG})[0] == 201
    return api


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A listener with one connector, for calls that change nothing."""
    with served(settings(tmp_path_factory.mktemp("refusing"))) as api:
        assert api.ask("POST", "/connectors", {"name": "f1", "config": CONFIG})[0] == 201
        yield api


def error(status: int, message: str) -> tuple[int, dict[str, Any]]:
    return status, {"error_code": status, "message": message}


def test_it_ends_at_once_and_may_be_asked_to_again(tmp_path: Path) -> None:
    worker = WorkerSettings.from_properties(
        {"bootstrap.servers": "h:1", "checkpoint.dir": str(tmp_path), "listeners": "http://127.0.0.1:0"}, "worker"
    )
    with served(worker) as api:
        api.listener.shutdown()
        assert not api.listener._thread.is_alive()


def test_the_life_of_a_connector_over_rest(made: Api) -> None:
    expected = {"name": "f1", "config": {**CONFIG, "name": "f1"}, "type": "source"}
    tasks = [{"connector": "f1", "task": 0}, {"connector": "f1", "task": 1}]
    assert made.ask("GET", "/connectors") == (200, ["f1"])
    assert made.ask("GET", "/connectors/f1") == (200, {**expected, "tasks": tasks})
    assert made.ask("PUT", "/connectors/f1/pause") == (202, None)
    assert [t["state"] for t in made.ask("GET", "/connectors/f1/status")[1]["tasks"]] == ["PAUSED", "PAUSED"]
    assert made.ask("GET", "/connectors/f1/tasks/1/status")[1]["state"] == "PAUSED"
    assert made.ask("PUT", "/connectors/f1/resume") == (202, None)
    assert made.ask("PUT", "/connectors/f1/stop") == (204, None)
    assert made.ask("GET", "/connectors/f1/status")[1]["connector"]["state"] == "STOPPED"
    assert made.ask("GET", "/connectors/f1") == (200, {**expected, "tasks": []})
    assert made.ask("DELETE", "/connectors/f1") == (204, None)
    assert made.ask("GET", "/connectors") == (200, [])


def test_created_in_a_state(api: Api) -> None:
    answer = api.call("POST", "/connectors", {"name": "f1", "config": CONFIG, "initial_state": "stopped"})
    assert answer.status_code == 201
    assert answer.headers["Location"] == f"{api.base}/connectors/f1"
    assert api.connectors.status("f1").state == "STOPPED"


def test_put_creates_and_changes(api: Api) -> None:
    assert api.ask("PUT", "/connectors/f1/config", CONFIG)[0] == 201
    status, answer = api.ask("PUT", "/connectors/f1/config", {**CONFIG, "table": "c", "tasks.max": 2})
    assert (status, answer["config"]["tasks.max"], answer["tasks"]) == (200, "2", [{"connector": "f1", "task": 0}])
    status, answer = api.ask("PATCH", "/connectors/f1/config", {"tasks.max": None, "columns": "x.*"})
    assert (status, answer["config"]) == (200, {**CONFIG, "table": "c", "columns": "x.*", "name": "f1"})
    assert api.ask("PATCH", "/connectors/f1/config", {"keyspace": None})[0] == 400
    assert api.connectors.config("f1")["keyspace"] == "ks"


def test_a_name_with_a_slash(api: Api) -> None:
    answer = api.call("POST", "/connectors", {"name": "a/b c", "config": CONFIG})
    assert answer.headers["Location"] == f"{api.base}/connectors/a%2Fb%20c"
    assert api.ask("GET", "/connectors/a%2Fb%20c/config")[0] == 200
    assert api.ask("GET", "/connectors/a/b c/config")[0] == 404


def test_two_requests_at_once_create_one_connector(api: Api) -> None:
    def create(_: int) -> int:
        return requests.post(f"{api.base}/connectors", json={"name": "f1", "config": CONFIG}, timeout=10).status_code

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(create, range(8))) == [201] + [409] * 7


def test_salts_in_keys_are_stars(api: Api) -> None:
    salted = {f"column.mask.hash.v2.SHA-256.with.salt.{SECRET}": "ks.t.w"}
    config = {**CONFIG, **salted}
    assert api.ask("POST", "/connectors", {"name": "f1", "config": config})[0] == 201
    shown = api.ask("GET", "/connectors/f1/config")[1]
    assert shown == {**CONFIG, "column.mask.hash.v2.SHA-256.with.salt.*****": "ks.t.w", "name": "f1"}
    # What is shown can be given back, and a mask goes by either name.
    for changed in (
        api.ask("PUT", "/connectors/f1/config", {**shown, "tasks.max": "3"}),
        api.ask("PATCH", "/connectors/f1/config", {"tasks.max": "4"}),
    ):
        assert changed[0] == 200
        assert api.connectors.config("f1").items() > salted.items()
    answers = [
        api.call("GET", path).text
        for path in ("/connectors?expand=info&expand=status", "/connectors/f1", "/connectors/f1/tasks")
    ]
    validate = f"/connector-plugins/{PLUGIN}/config/validate"
    wrong = {f"{key}{end}": "x" for key in salted for end in ("", " y")}
    misspelt = {f"column.mask.hash.v2.SHA-256.with.slat.{SECRET}": "ks.t.w"}
    for properties in ({**config, **wrong}, {**config, **misspelt}, salted, {"tasks.max": "x", **config}):
        answers.append(api.call("PUT", validate, properties).text)
        answers.append(api.call("PUT", "/connectors/f1/config", properties).text)
    assert SECRET not in "".join(answers)
    assert api.ask("PATCH", "/connectors/f1/config", dict.fromkeys(salted))[0] == 200
    assert not api.connectors.config("f1").keys() & salted.keys()


def test_secrets_are_stars(api: Api, tmp_path: Path) -> None:
    secrets = {
        "cassandra.password": SECRET,
        "value.converter.schema.registry.basic.auth.user.info": f"u:{SECRET}",
        "key.converter.schema.registry.url": f"http://u:{SECRET}@registry",
    }
    config = {**CONFIG, **secrets}
    api.ask("POST", "/connectors", {"name": "f1", "config": config})
    stars = {**dict.fromkeys(secrets, "*****"), "key.converter.schema.registry.url": "http://*****@registry"}
    shown = api.ask("GET", "/connectors/f1/config")[1]
    assert shown == {**CONFIG, **stars, "name": "f1"}
    # What is shown can be given back.
    for changed in (
        api.ask("PUT", "/connectors/f1/config", {**shown, "tasks.max": "3"}),
        api.ask("PATCH", "/connectors/f1/config", {"cassandra.password": "*****", "tasks.max": "4"}),
    ):
        assert changed[0] == 200
        assert api.connectors.config("f1")["cassandra.password"] == SECRET
        assert api.connectors.config("f1")["key.converter.schema.registry.url"].count(SECRET) == 1
    api.ask("PATCH", "/connectors/f1/config", {"cassandra.password": "other"})
    assert api.connectors.config("f1")["cassandra.password"] == "other"
    # Stars for which there is no secret are no secret.
    wrong = api.ask("PUT", "/connectors/f2/config", {**CONFIG, "table": "z", "cassandra.password": "*****"})
    assert wrong[0] == 400
    assert "give the secret itself" in wrong[1]["message"]
    answers = [
        api.call("GET", path).text
        for path in ("/connectors?expand=info&expand=status", "/connectors/f1", "/connectors/f1/tasks")
    ]
    bad = {**config, "tasks.max": SECRET[:3], "cassandra.pasword": SECRET, "auth.password": SECRET}
    answers.append(api.call("PUT", f"/connector-plugins/{PLUGIN}/config/validate", bad).text)
    answers.append(api.call("PUT", "/connectors/f1/config", bad).text)
    assert SECRET not in "".join(answers)


def test_references_are_kept_and_shown_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", SECRET)
    monkeypatch.setenv("KS", "ks")
    config = {**CONFIG, "cassandra.password": "${env:PW}", "keyspace": "${env:KS}"}
    with served(settings(tmp_path, config_providers_env_param_allowlist_pattern="PW|KS|NONE_.*")) as api:
        status, answer = api.ask("PUT", "/connectors/f1/config", config)
        assert (status, answer["config"]) == (201, {**config, "name": "f1"})
        assert api.ask("PUT", "/connectors/f1/config", answer["config"])[0] == 200
        assert api.connectors.config("f1") == {**config, "name": "f1"}
        status, answer = api.ask("PUT", "/connectors/f1/config", {**config, "keyspace": "${env:NONE_SUCH}"})
        assert status == 400
        assert "keyspace=${env:NONE_SUCH}: the environment has no NONE_SUCH" in answer["message"]


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """A folder with the files of a worker, one below it for connectors, and a secret outside the folder."""
    folder = tmp_path / "etc"
    below = folder / "connectors"
    below.mkdir(parents=True)
    for file in (folder / "s.properties", below / "s.properties", below / "worker", tmp_path / "s.properties"):
        file.write_text(f"pw={SECRET}\nkafka=of-the-worker\n")
    (below / "link.properties").symlink_to(tmp_path / "s.properties")
    (below / "hard.properties").hardlink_to(folder / "s.properties")
    (below / "away").symlink_to(tmp_path)
    os.mkfifo(below / "fifo")
    (below / "directory").mkdir()
    (below / "zero").symlink_to("/dev/zero")
    with open(below / "huge", "wb") as huge:
        huge.truncate(1 << 30)
    (folder / "w.properties").write_text(
        "bootstrap.servers=127.0.0.1:1\nlisteners=http://127.0.0.1:0\n"
        f"checkpoint.dir={tmp_path / 'checkpoint'}\n"
        f"kafka.sasl.password=${{file:{folder}/s.properties:kafka}}\nkafka.sasl.username=u\n"
        f"kafka.ssl.key.password=${{file:{below}/worker:kafka}}\n"
    )
    return folder


def allow(secrets: Path, *folders: Path) -> Path:
    """The worker's file, with these folders allowed."""
    path = secrets / "w.properties"
    allowed = ", ".join(map(str, folders))
    path.write_text(path.read_text() + f"config.providers.file.param.allowed.paths={allowed}\n")
    return path


def refused(api: Api, reference: str, because: str = "over REST may not refer to it") -> None:
    """Whether it is the value of a secret, of another key, or of one that there isn't."""
    for body in ({"cassandra.password": reference}, {"data.topic": reference}, {"nothing": reference}):
        config = {**CONFIG, **body}
        status, answer = api.ask("PUT", "/connectors/f1/config", config)
        assert status == 400, reference
        assert because in answer["message"]
        assert SECRET not in answer["message"]
        _, answer = api.ask("PUT", f"/connector-plugins/{PLUGIN}/config/validate", {**config, "name": "f1"})
        assert answer["error_count"] > 0
        assert SECRET not in json.dumps(answer)


def test_no_reference_is_allowed_over_rest_by_default(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", SECRET)
    with served(WorkerSettings.load(secrets / "w.properties")) as api:
        for file in (secrets / "s.properties", secrets / "connectors/s.properties", secrets / "w.properties"):
            refused(api, f"${{file:{file}:pw}}")
        refused(api, "${env:PW}")


def test_references_over_rest_stay_in_the_folders_that_a_worker_allows(
    secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PW", SECRET)
    below = secrets / "connectors"
    with served(WorkerSettings.load(allow(secrets, below, Path("/none")))) as api:
        for reference in (
            f"${{file:{secrets.parent}/s.properties:pw}}",
            f"${{file:{secrets}/s.properties:pw}}",
            f"${{file:{below}/../s.properties:pw}}",
            f"${{file:{below}/link.properties:pw}}",
            f"${{file:{below}/away/s.properties:pw}}",
            f"${{file:{secrets.parent}/there-is-none:pw}}",
            f"${{file:{secrets / 'w.properties'}:bootstrap.servers}}",
            f"${{file:{below}/worker:kafka}}",
            f"${{file:{below}/worker:pw}}",
            f"${{file:{below}/../connectors/worker:pw}}",
            f"${{file:{below}/hard.properties:pw}}",
            f"${{file:{below}-2/s.properties:pw}}",
            f"${{file:{below}/zero:pw}}",
            "${file:/proc/self/environ:PW}",
            "x${env:PW}",
            "${env:NONE_SUCH}",
        ):
            refused(api, reference)
        for name, because in (("fifo", "regular file"), ("directory", "regular file"), ("huge", "more than 4 MiB")):
            refused(api, f"${{file:{below}/{name}:pw}}", because)
        config = {**CONFIG, "cassandra.password": f"${{file:{below}/s.properties:pw}}"}
        assert api.ask("PUT", "/connectors/f1/config", config)[0] in (200, 201)
        assert api.connectors.all()["f1"].settings.cassandra_password.get_secret_value() == SECRET  # type: ignore
        messages = [
            api.ask("PUT", "/connectors/f1/config", {**CONFIG, "cassandra.password": f"${{file:{file}:pw}}"})[1]
            for file in (secrets.parent / "s.properties", secrets.parent / "there-is-none")
        ]
        texts = [message["message"].replace("there-is-none", "s.properties") for message in messages]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("folder", [".", "..", "../checkpoint", "connectors/away/etc", "/"])
def test_a_folder_for_connectors_has_nothing_of_the_worker(secrets: Path, folder: str) -> None:
    with pytest.raises(ConfigError, match="name a folder that is for connectors alone"):
        WorkerSettings.load(allow(secrets, secrets / "connectors", secrets / folder))


def test_files_of_connectors_are_not_read_over_rest(secrets: Path) -> None:
    """They may hold secrets themselves."""
    path = secrets / "connectors/f9.properties"
    path.write_text(
        "".join(f"{key}={value}\n" for key, value in {**CONFIG, "name": "f9", "table": "a", "data.topic": "t"}.items())
    )
    worker, _ = load(allow(secrets, secrets / "connectors"), [path])
    with served(worker) as api:
        refused(api, f"${{file:{path}:data.topic}}")


def test_files_that_are_replaced_while_it_runs(tmp_path: Path) -> None:
    """As Kubernetes replaces a mounted secret: `..data` is a link that leads elsewhere after each renewal."""
    mount, below = tmp_path / "etc", tmp_path / "etc" / "connectors"
    for version in (1, 2):
        folder = mount / f"..{version}"
        (folder / "connectors").mkdir(parents=True)
        (folder / "worker.properties").write_text(
            f"bootstrap.servers=127.0.0.1:1\nlisteners=http://127.0.0.1:0\ncheckpoint.dir={tmp_path / 'checkpoint'}\n"
            f"kafka.sasl.username=u\nkafka.sasl.password=${{file:{below}/kafka:pw}}\n"
            f"config.providers.file.param.allowed.paths={below}\n"
        )
        for name in ("kafka", "orders"):
            (folder / "connectors" / name).write_text(f"pw={SECRET}{version}\n")
    data = mount / "..data"
    data.symlink_to("..1")
    for name in ("worker.properties", "connectors"):
        (mount / name).symlink_to(f"..data/{name}")
    with served(WorkerSettings.load(mount / "worker.properties")) as api:
        for version in (1, 2):
            for own in (below / "kafka", data / "connectors/kafka", mount / f"..{version}/connectors/kafka"):
                refused(api, f"${{file:{own}:pw}}")
            for own in (mount / "worker.properties", data / "worker.properties"):
                refused(api, f"${{file:{own}:bootstrap.servers}}")
            config = {**CONFIG, "cassandra.password": f"${{file:{below}/orders:pw}}"}
            assert api.ask("PUT", "/connectors/f1/config", config)[0] in (200, 201)
            password = api.connectors.all()["f1"].settings.cassandra_password
            assert password is not None
            assert password.get_secret_value() == f"{SECRET}{version}"
            (mount / "..new").symlink_to("..2")
            (mount / "..new").replace(data)
            for name in ("worker.properties", "connectors/kafka", "connectors/orders"):
                (mount / f"..1/{name}").unlink(missing_ok=True)


def test_a_connectors_own_file_may_refer_to_anything(secrets: Path) -> None:
    outside = f"${{file:{secrets.parent}/s.properties:pw}}"
    file = {**CONFIG, "name": "f1", "cassandra.password": outside}
    worker = WorkerSettings.load(secrets / "w.properties")
    with served(worker) as api:
        api.connectors.load({"f1": file})
        assert api.ask("PATCH", "/connectors/f1/config", {"query.concurrency": "3"})[0] == 200
        assert api.ask("PUT", f"/connector-plugins/{PLUGIN}/config/validate", file)[1]["error_count"] == 0
        assert api.ask("PATCH", "/connectors/f1/config", {"data.topic": outside})[0] == 400
        assert api.ask("PUT", "/connectors/f2/config", {**file, "name": "f2", "data.topic": "d2"})[0] == 400
        # What was changed over REST, and what was made there, stays so when the worker starts again.
        saved = json.loads((worker.checkpoint_dir / "connectors.json").read_text())
    saved["f1"]["config"]["data.topic"] = outside
    saved["f2"] = {"config": {**CONFIG, "table": "c", "cassandra.password": outside}, "state": "RUNNING", "file": None}
    (worker.checkpoint_dir / "connectors.json").write_text(json.dumps(saved))
    restarted = Connectors(worker, earliest)
    restarted.load({"f1": file})
    assert restarted.names() == ["f1"]
    assert restarted.all()["f1"].settings.data_topic == ""
    assert restarted.all()["f1"].settings.cassandra_password.get_secret_value() == SECRET  # type: ignore[union-attr]


@pytest.mark.parametrize("key", sorted(SERVERS))
@pytest.mark.parametrize("written", ["reference", "itself"])
def test_a_files_secrets_are_for_its_servers(secrets: Path, key: str, written: str) -> None:
    """Who may use the API could name a server of their own, which then gets them."""
    secret = SECRET if written == "itself" else f"${{file:{secrets.parent}/s.properties:pw}}"
    registry = "value.converter.schema.registry."
    file = {
        **CONFIG,
        "name": "f1",
        "cassandra.username": "u",
        "cassandra.password": secret,
        "cassandra.ssl.enabled": "false",
        f"{registry}url": "http://r",
    }
    file["contactPoints"] = "10.0.0.1"  # in the words of another product
    value = {
        "port": "1",
        "enabled": "true",
        "hostname": "false",
        "cafile": "/ca",
        "points": "evil",
        "url": "http://evil",
    }
    change = {key: value[key.rpartition(".")[2]]}
    if key == "key.converter.schema.registry.url":
        change[f"{registry}url"] = "http://evil"
    assert key in [field.alias or name for name, field in ConnectorSettings.model_fields.items()]
    with served(WorkerSettings.load(secrets / "w.properties")) as api:
        api.connectors.load({"f1": file})
        assert api.ask("PATCH", "/connectors/f1/config", {"query.concurrency": "3"})[0] == 200
        status, answer = api.ask("PATCH", "/connectors/f1/config", change)
        assert (status, SECRET in json.dumps(answer)) == (400, False)
        assert ("give it again" if written == "reference" else "give the secret itself") in answer["message"]
        if written == "reference":
            status, answer = api.ask("PATCH", "/connectors/f1/config", {**change, "cassandra.password": secret})
            assert status == 400
            assert "may not refer to it" in answer["message"]
        assert api.ask("PATCH", "/connectors/f1/config", {**change, "cassandra.password": "theirs"})[0] == 200
        assert api.connectors.all()["f1"].settings.cassandra_password.get_secret_value() == "theirs"  # type: ignore


@pytest.mark.parametrize("key", sorted(SERVERS))
@pytest.mark.parametrize("method", ["PATCH", "PUT"])
@pytest.mark.parametrize("written", ["reference", "variable", "itself"])
def test_secrets_are_for_the_servers_that_they_were_given_for(
    secrets: Path, monkeypatch: pytest.MonkeyPatch, key: str, method: str, written: str
) -> None:
    """Of connectors that were made over REST, too. Who may not read a secret could have it sent to a server of theirs:
    they give it again, or nothing changes.
    """
    monkeypatch.setenv("PW", SECRET)
    registry = "value.converter.schema.registry."
    reference = f"${{file:{secrets}/connectors/s.properties:pw}}"
    secret = {"reference": reference, "variable": "${env:PW}", "itself": SECRET}[written]
    config = {
        **CONFIG,
        "name": "f1",
        "cassandra.contact.points": "10.0.0.1",
        "cassandra.username": "u",
        "cassandra.password": secret,
        "cassandra.ssl.enabled": "false",
        f"{registry}url": "http://r",
    }
    names = {"port": "1", "enabled": "true", "hostname": "false", "cafile": "/ca", "points": "evil", "url": "http://e"}
    change = {key: names[key.rpartition(".")[2]]}
    if key == "key.converter.schema.registry.url":
        change[f"{registry}url"] = "http://e"
    path = allow(secrets, secrets / "connectors")
    path.write_text(path.read_text() + "config.providers.env.param.allowlist.pattern=PW\n")
    with served(WorkerSettings.load(path)) as api:
        assert api.ask("PUT", "/connectors/f1/config", config)[0] == 201
        shown = api.ask("GET", "/connectors/f1/config")[1]
        assert api.ask("PUT", "/connectors/f1/config", {**shown, "query.concurrency": "3"})[0] == 200
        assert api.ask("PATCH", "/connectors/f1/config", {"query.concurrency": "4"})[0] == 200
        body = change if method == "PATCH" else {**shown, **change}
        status, answer = api.ask(method, "/connectors/f1/config", body)
        # A whole configuration has the reference in it, as it was given; stars are not the secret.
        is_given_again = method == "PUT" and written != "itself"
        assert (status, "give it again" in answer.get("message", "")) == (
            (200, False) if is_given_again else (400, True)
        )
        assert SECRET not in json.dumps(answer)
        assert api.ask(method, "/connectors/f1/config", {**body, "cassandra.password": secret})[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        ("GET", "/connectors/none", "Connector none not found"),
        ("GET", "/connectors/none/config", "Connector none not found"),
        ("PATCH", "/connectors/none/config", "Connector none not found"),
        ("GET", "/connectors/none/status", "No status found for connector none"),
        ("GET", "/connectors/none/tasks", "Connector none not found"),
        ("GET", "/connectors/none/tasks/0/status", "No status found for task none-0"),
        ("GET", "/connectors/f1/tasks/9/status", "No status found for task f1-9"),
        ("GET", "/connectors/f1/tasks/x/status", "HTTP 404 Not Found"),
        ("POST", "/connectors/none/tasks/0/restart", "Unknown connector: none"),
        ("POST", "/connectors/f1/tasks/9/restart", "Unknown task: f1-9"),
        ("POST", "/connectors/none/restart", "Unknown connector: none"),
        ("PUT", "/connectors/none/pause", "Unknown connector none"),
        ("PUT", "/connectors/none/stop", "Unknown connector none"),
        ("GET", "/connectors/none/offsets", "Connector none not found"),
        ("DELETE", "/connectors/none/offsets", "Connector none not found"),
        ("DELETE", "/connectors/none", "Connector none not found"),
        ("GET", "/connectors/f1/tasks-config", "HTTP 404 Not Found"),
        ("GET", "/else", "HTTP 404 Not Found"),
        ("GET", "/connector-plugins/Nope/config", "Unknown plugin Nope."),
        ("GET", "/admin/loggers/no.such", "Logger no.such not found."),
    ],
)
def test_unknown_connectors_and_paths(refusing: Api, method: str, path: str, message: str) -> None:
    body = {} if method == "PATCH" else None
    assert refusing.ask(method, path, body) == error(404, message)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"name": "f1", "config": CONFIG}, 409, "Connector f1 already exists"),
        ({"name": "f1", "config": {**CONFIG, "tasks.max": "x"}}, 400, "following 1 error(s):\ntasks.max=x: give"),
        ({"name": "f2", "config": {"connector.class": "No.Such"}}, 400, "which name matches No.Such"),
        ({"name": "f2", "config": {}}, 400, "contains no connector type"),
        ({"name": "f2", "config": {**CONFIG, "name": "f3"}}, 400, "(f3) doesn't match connector name in the URL (f2)"),
        ({"config": CONFIG}, 400, "name=: give it a value"),
        ({"name": "f\n2", "config": {**CONFIG, "table": "z"}}, 400, "a name has no control characters"),
        ({"name": "f2", "config": {**CONFIG, "columns": None}}, 400, "Null value can not be supplied"),
        ({"name": "f2", "config": CONFIG}, 400, "reads events-ks.a already"),
        ({"name": "f2"}, 500, "JSON object"),
        ({"name": "f2", "config": CONFIG, "nope": 1}, 500, 'Unrecognized field "nope"'),
        ({"name": "f2", "config": CONFIG, "initial_state": "WHAT"}, 500, "WHAT"),
        ({"name": "f2", "config": {"a": {}}}, 500, "a text is expected"),
        ([1], 500, "JSON object"),
    ],
)
def test_connectors_that_cannot_be_created(refusing: Api, body: Any, status: int, message: str) -> None:
    answered, answer = refusing.ask("POST", "/connectors", body)
    assert (answered, answer["error_code"]) == (status, status)
    assert message in answer["message"]
    assert refusing.connectors.names() == ["f1"]


def test_invalid_request_bodies(made: Api) -> None:
    for data, kind, status in (
        (b"{nope", "application/json", 500),
        (b"[" * 100_000, "application/json", 500),
        (b"{}", "text/plain", 415),
        (b"name=f2", "application/x-www-form-urlencoded", 415),
        (b"", "application/json", 500),
        (b'{"a": "' + b"x" * (1 << 20) + b'"}', "application/json", 413),
    ):
        answer = made.session.put(
            f"{made.base}/connectors/f1/config", data=data, headers={"Content-Type": kind}, timeout=10
        )
        assert (answer.status_code, answer.json()["error_code"]) == (status, status), data[:20]
    assert made.ask("PUT", "/connectors") == error(405, "HTTP 405 Method Not Allowed")
    assert made.call("OPTIONS", "/connectors").headers["Allow"] == "GET, POST, HEAD, OPTIONS"
    assert made.call("HEAD", "/connectors").text == ""


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("application/xml", 406),
        ("text/html, application/json;q=0", 406),
        ("application/json", 200),
        ("application/xml, application/*;q=0.5", 200),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", 200),
        ("", 200),
    ],
)
def test_who_does_not_take_json_is_refused(made: Api, accept: str, status: int) -> None:
    """As Kafka Connect does. Metrics are text."""
    answer = made.session.get(f"{made.base}/connectors", headers={"Accept": accept}, timeout=10)
    assert answer.status_code == status
    if status == 406:
        assert answer.json() == {"error_code": 406, "message": "HTTP 406 Not Acceptable"}
        changed = made.session.delete(f"{made.base}/connectors/f1", headers={"Accept": accept}, timeout=10)
        assert (changed.status_code, made.connectors.names()) == (406, ["f1"])
    text = made.session.get(f"{made.base}/metrics", headers={"Accept": "text/plain"}, timeout=10)
    assert text.status_code == 200


def test_restart(made: Api) -> None:
    assert made.ask("POST", "/connectors/f1/restart") == (204, None)
    made.connectors.all()["f1"].tasks["b"].error = HelenusError(Kind.TABLE_MISSING, "there is no such table", "ks.b")
    answer = made.ask("GET", "/connectors/f1/status")[1]
    assert [task["state"] for task in answer["tasks"]] == ["UNASSIGNED", "FAILED"]
    assert answer["tasks"][1]["trace"].startswith("there is no such table (ks.b): ")
    assert "trace" not in answer["tasks"][0]
    status, answer = made.ask("POST", "/connectors/f1/restart?includeTasks=True&onlyFailed=true")
    assert (status, answer["connector"]["state"]) == (202, "RUNNING")
    assert [task["state"] for task in answer["tasks"]] == ["UNASSIGNED", "RESTARTING"]
    assert made.connectors.all()["f1"].tasks["b"].error is None
    made.connectors.all()["f1"].tasks["b"].error = HelenusError(Kind.TABLE_MISSING, "there is no such table", "ks.b")
    assert made.ask("POST", "/connectors/f1/tasks/1/restart") == (204, None)
    assert made.connectors.all()["f1"].tasks["b"].error is None
    status, answer = made.ask("POST", "/connectors/f1/restart?includeTasks=true&onlyFailed=false")
    assert {answer["connector"]["state"], *(task["state"] for task in answer["tasks"])} == {"RESTARTING"}


def test_offsets(made: Api) -> None:
    def entry(topic: str, partition: int, offset: int | None) -> dict[str, Any]:
        position = None if offset is None else {"offset": offset}
        return {"partition": {"topic": f"events-ks.{topic}", "partition": partition}, "offset": position}

    alter = {"offsets": [entry("a", 0, 7), entry("b", 1, 9)]}
    refused = made.ask("PATCH", "/connectors/f1/offsets", alter)
    assert refused == made.ask("DELETE", "/connectors/f1/offsets")
    assert refused[0] == 400
    assert "must be in the STOPPED state" in refused[1]["message"]
    made.ask("PUT", "/connectors/f1/stop")
    assert made.ask("PATCH", "/connectors/f1/offsets", alter)[0] == 200
    others = [entry("a", 1, 0), entry("b", 0, 3)]  # as they were: at the first event
    altered = sorted([*alter["offsets"], *others], key=lambda o: list(o["partition"].values()))
    assert made.ask("GET", "/connectors/f1/offsets") == (200, {"offsets": altered})
    large = entry("a", 0, (1 << 63) - 1)
    as_text = {**large, "offset": {"offset": str(large["offset"]["offset"])}}
    for large_entry in (large, as_text):
        assert made.ask("PATCH", "/connectors/f1/offsets", {"offsets": [large_entry]})[0] == 200
        assert made.ask("GET", "/connectors/f1/offsets")[1]["offsets"][0] == large
    assert made.ask("PATCH", "/connectors/f1/offsets", {"offsets": [entry("a", 0, None)]})[0] == 200
    assert made.ask("GET", "/connectors/f1/offsets")[1]["offsets"][0] == entry("a", 0, 3)
    whole = [entry(topic, partition, offset) for topic in "ab" for partition, offset in ((0, 3), (1, 0))]
    assert made.ask("DELETE", "/connectors/f1/offsets")[0] == 200
    assert made.ask("GET", "/connectors/f1/offsets") == (200, {"offsets": whole})
    for wrong in ([], [entry("z", 0, 1)], [entry("a", 2, 1)], [entry("a", 0, -5)], [{"partition": {}}], [3], {"a": 1}):
        assert made.ask("PATCH", "/connectors/f1/offsets", {"offsets": wrong})[0] == 400, wrong
    assert made.ask("GET", "/connectors/f1/offsets") == (200, {"offsets": whole})


@pytest.mark.parametrize("part", ["offset", "partition"])
@pytest.mark.parametrize(
    "number", [str(1 << 63), "1e400", "3.9", "3.0", "true", '"4_2"', '" 4"', '"1e3"', "[1]", f'"{"9" * 5000}"']
)
def test_invalid_numbers_in_an_offset(made: Api, part: str, number: str) -> None:
    made.ask("PUT", "/connectors/f1/stop")
    numbers = {"partition": "0", "offset": "4", part: number}
    partition_text = f'"partition": {{"topic": "events-ks.a", "partition": {numbers["partition"]}}}'
    body = f'{{"offsets": [{{{partition_text}, "offset": {{"offset": {numbers["offset"]}}}}}]}}'
    url = f"{made.base}/connectors/f1/offsets"
    response = made.session.patch(url, data=body, headers={"Content-Type": "application/json"}, timeout=10)
    assert (response.status_code, response.json()["error_code"]) == (400, 400)
    assert made.ask("GET", "/connectors/f1/offsets") == (200, {"offsets": []})


def test_topics(made: Api) -> None:
    made.connectors.all()["f1"].tasks["a"].ready = True
    assert made.ask("GET", "/connectors/f1/topics") == (200, {"f1": {"topics": ["data-ks.a"]}})
    assert made.ask("PUT", "/connectors/f1/topics/reset") == (202, None)
    assert made.ask("GET", "/connectors/f1/topics") == (200, {"f1": {"topics": []}})
    assert made.ask("GET", "/connectors/none/topics") == (200, {"none": {"topics": []}})


def test_every_setting_is_described(api: Api) -> None:
    answer = api.ask("GET", f"/connector-plugins/{PLUGIN}/config")[1]
    assert {key["name"] for key in answer} == {field.alias for field in ConnectorSettings.model_fields.values()}
    assert all(key["documentation"] and key["group"] for key in answer)
    for group in {key["group"] for key in answer}:
        orders = [key["order_in_group"] for key in answer if key["group"] == group]
        assert orders == list(range(1, len(orders) + 1))
    assert list(dict.fromkeys(key["group"] for key in answer))[-1] == "Expert"
    assert {key["importance"] for key in answer if key["group"] == "Expert"} == {"LOW"}
    types = {key["name"]: (key["type"], key["required"], key["default_value"]) for key in answer}
    assert types["name"] == ("STRING", True, None)
    assert types["cassandra.password"] == ("PASSWORD", False, None)
    assert types["cassandra.contact.points"] == ("LIST", False, "127.0.0.1")
    assert types["cassandra.port"] == ("INT", False, "9042")
    assert types["cassandra.ssl.enabled"] == ("BOOLEAN", False, "false")
    assert types["errors.tolerance"] == ("STRING", False, "none")
    for model in (WorkerSettings, ConnectorSettings):
        for name, field in model.model_fields.items():
            assert model.texts().get(field.alias or name), name
            assert [note for note in field.metadata if isinstance(note, Group)], name


def test_validate(api: Api) -> None:
    wrong = {"connector.class": PLUGIN, "keyspace": "ks", "tasks.max": "x", "outputFormat": "xml", "tabel": "t"}
    status, answer = api.ask("PUT", "/connector-plugins/CassandraSource/config/validate", wrong)
    assert (status, answer["name"]) == (200, PLUGIN)
    values = {config["value"]["name"]: config["value"] for config in answer["configs"]}
    errors = {name: value["errors"] for name, value in values.items() if value["errors"]}
    assert errors.keys() == {"name", "table", "tasks.max", "output.format", "tabel"}
    assert errors["tabel"] == ["unknown property, did you mean table?"]
    assert answer["error_count"] == sum(map(len, errors.values()))
    assert values["output.format"]["value"] == "xml"
    assert values["output.format"]["recommended_values"] == [
        "key-value-avro",
        "key-value-json",
        "json",
        "debezium",
        "debezium-cassandra",
        "cep44",
    ]
    assert values["cassandra.port"]["value"] == "9042"
    assert [c["value"]["name"] for c in answer["configs"] if c["definition"] is None] == ["tabel"]
    good = {**CONFIG, "name": "f1"}
    for name in (PLUGIN, "CassandraSource", "CassandraSourceConnector"):
        assert api.ask("PUT", f"/connector-plugins/{name}/config/validate", good)[1]["error_count"] == 0
    assert api.ask("PUT", "/connector-plugins/Nope/config/validate", good)[0] == 400
    assert api.ask("PUT", "/connector-plugins/Nope/config/validate", {"connector.class": "Nope"})[0] == 500
    assert api.ask("PUT", f"/connector-plugins/{PLUGIN}/config/validate", {"keyspace": "ks"})[0] == 500


TRANSFORMS = {
    "transforms": "cast,route",
    "transforms.cast.type": "org.apache.kafka.connect.transforms.Cast$Value",
    "transforms.cast.spec": "a:string",
    "transforms.cast.predicate": "gone",
    "transforms.cast.negate": "true",
    "transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms.route.regex": "data-(.*)",
    "transforms.route.replacement": "$1",
    "predicates": "gone",
    "predicates.gone.type": "org.apache.kafka.connect.transforms.predicates.RecordIsTombstone",
}


def test_transforms_are_plugins(api: Api) -> None:
    kinds = [plugin["type"] for plugin in api.ask("GET", "/connector-plugins?connectorsOnly=false")[1]]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "source": 1,
        "transformation": 33,
        "predicate": 3,
        "converter": 12,
        "header_converter": 3,
    }
    assert len(api.ask("GET", "/connector-plugins")[1]) == 1
    plugin = "org.apache.kafka.connect.transforms.RegexRouter"
    answer = api.ask("GET", f"/connector-plugins/{plugin}/config")[1]
    assert [(key["name"], key["type"], key["required"]) for key in answer] == [
        ("regex", "STRING", True),
        ("replacement", "STRING", True),
    ]
    plugin = "io.confluent.connect.json.JsonSchemaConverter"
    answer = api.ask("GET", f"/connector-plugins/{plugin}/config")[1]
    assert {"value.subject.name.strategy", "decimal.format"} <= {key["name"] for key in answer}
    assert all(key["documentation"] for key in answer)


def test_transforms_are_validated(api: Api) -> None:
    path = f"/connector-plugins/{PLUGIN}/config/validate"
    good = {**CONFIG, "name": "f1", **TRANSFORMS, "output.format": "key-value-json"}
    answer = api.ask("PUT", path, good)[1]
    assert answer["error_count"] == 0, [c["value"] for c in answer["configs"] if c["value"]["errors"]]
    assert answer["groups"][-3:] == ["Transforms: cast", "Transforms: route", "Predicates: gone"]
    values = {config["value"]["name"]: config for config in answer["configs"]}
    assert values["transforms"]["value"]["value"] == "cast,route"
    assert values["transforms"]["definition"]["type"] == "LIST"
    assert values["transforms.cast.spec"]["value"]["value"] == "a:string"
    assert values["transforms.cast.spec"]["definition"]["group"] == "Transforms: cast"
    assert values["transforms.route.negate"]["value"]["value"] == "false"
    bad = {**good, "transforms.cast.spec": "a:x", "transforms.route.rgex": "x", "transforms.cast.predicate": "none"}
    del bad["transforms.route.regex"]
    answer = api.ask("PUT", path, bad)[1]
    errors = {c["value"]["name"]: c["value"]["errors"] for c in answer["configs"] if c["value"]["errors"]}
    assert errors == {
        "transforms.cast.spec": [
            "x is no type to cast to: give one of int8, int16, int32, int64, float32, float64, boolean, string"
        ],
        "transforms.cast.predicate": ["predicates does not list none"],
        "transforms.route.regex": ["required property is missing"],
        "transforms.route.rgex": ["unknown property, did you mean transforms.route.regex?"],
    }


def test_the_class_of_datastax(api: Api) -> None:
    theirs = "com.datastax.oss.kafka.source.KafkaCassandraSourceConnector"
    assert api.ask("PUT", "/connectors/f1/config", {**CONFIG, "connector.class": theirs})[0] == 201


def test_health(api: Api) -> None:
    healthy = "Worker has completed startup and is ready to handle requests."
    assert api.ask("GET", "/health") == (200, {"status": "healthy", "message": healthy})
    assert api.call("GET", "/health/ready").text == "ready\n"
    # One that failed is no reason to restart the others.
    api.failed = "f1: the table has no cdc = true"
    assert api.call("GET", "/health").status_code == 200
    assert (api.call("GET", "/health/ready").status_code, api.call("GET", "/health/live").status_code) == (503, 200)
    api.failed = None
    api.trouble = "starting: Spark is not there yet"
    assert api.ask("GET", "/health") == (503, {"status": "starting", "message": api.trouble})
    api.trouble = "the broker is away"
    assert api.ask("GET", "/health") == (500, {"status": "unhealthy", "message": api.trouble})
    ready = api.call("GET", "/health/ready")
    assert (ready.status_code, ready.text) == (503, "the broker is away\n")
    assert (api.call("GET", "/health/live").status_code, api.call("GET", "/health/live").text) == (200, "live\n")
    assert "python_info" in api.call("GET", "/metrics").text


@pytest.fixture
def logging_to(capsys: pytest.CaptureFixture[str]) -> Iterator[pytest.CaptureFixture[str]]:
    before, root = structlog.get_config(), logging.getLogger().handlers[:]
    logs.configure("info", "json")
    yield capsys
    structlog.configure(**before)
    logging.getLogger().handlers[:] = root


def test_levels_change_while_it_runs(api: Api, logging_to: pytest.CaptureFixture[str]) -> None:
    stage, follow = (
        structlog.get_logger("helenus_connector.pipeline.stage"),
        structlog.get_logger("helenus_agent.segments.segment_queue"),
    )

    def heard() -> list[str]:
        logging_to.readouterr()
        for name, log in (("stage", stage), ("follow", follow)):
            log.debug(f"{name}.debug")
            log.info(f"{name}.info")
            log.warning(f"{name}.warning")
        return [json.loads(line)["event"] for line in logging_to.readouterr().err.splitlines()]

    warnings, infos = ["stage.warning", "follow.warning"], ["stage.info", "stage.warning"]
    assert heard() == [*infos, "follow.info", "follow.warning"]
    status, changed = api.ask("PUT", "/admin/loggers/helenus_connector", {"level": "DEBUG"})
    assert status == 200
    assert {"helenus_connector", "helenus_connector.rest.server"} <= set(changed)
    assert heard() == ["stage.debug", *infos, "follow.info", "follow.warning"]
    answer = api.ask("GET", "/admin/loggers/helenus_connector.rest.server")[1]
    assert answer["level"] == "DEBUG"
    assert answer["last_modified"] > 1_600_000_000_000
    assert api.ask("PUT", "/admin/loggers/helenus_connector.pipeline.stage", {"level": "error"})[0] == 200
    assert heard() == ["follow.info", "follow.warning"]
    # One above it takes all below it along.
    assert api.ask("PUT", "/admin/loggers/root?scope=cluster", {"level": "WARN"}) == (204, None)
    assert heard() == warnings
    assert api.ask("PUT", "/admin/loggers/root", {"level": "WARN"}) == (200, [])
    assert api.ask("GET", "/admin/loggers/root")[1]["level"] == "WARN"
    assert api.ask("PUT", "/admin/loggers/root", {"level": "LOUD"}) == error(404, "invalid log level 'LOUD'.")
    assert api.ask("PUT", "/admin/loggers/root", {})[0] == 400
    assert set(api.ask("GET", "/admin/loggers")[1]) >= {"root", "helenus_connector.rest.server"}


def test_a_password(tmp_path: Path) -> None:
    with served(settings(tmp_path, rest_basic_auth_user_info=":".join(LOGIN))) as api:
        for path in ("/", "/connectors", "/metrics", "/health", "/health/ready", "/else", "//health/live"):
            answer = api.call("GET", path)
            assert (answer.status_code, answer.json()["error_code"]) == (401, 401), path
            assert answer.headers["WWW-Authenticate"].startswith("Basic")
        assert api.call("GET", "/health/live").status_code == 200
        assert api.call("GET", "/connectors", auth=LOGIN).status_code == 200
        for wrong in (("operator", "x"), ("x", "let:me:in"), ("operator", "let:me:in "), ("", "")):
            assert api.call("GET", "/connectors", auth=wrong).status_code == 401
        for header in ("", "Basic", "Basic %%%", "Bearer b3BlcmF0b3I6bGV0Om1lOmlu"):
            assert api.call("GET", "/connectors", headers={"Authorization": header}).status_code == 401
        assert api.call("POST", "/connectors", {"name": "f1", "config": CONFIG}).status_code == 401
        assert api.connectors.names() == []


def test_a_page_of_another_name_is_refused(api: Api) -> None:
    port = api.listener.port
    for host in (
        f"rebound.example.com:{port}",
        "rebound.example.com",
        f"0.0.0.0:{port}",
        f"127.0.0.1.example.com:{port}",
    ):
        for method, path in (("GET", "/connectors"), ("GET", "/metrics"), ("POST", "/connectors/f1/restart")):
            answer = api.call(method, path, headers={"Host": host})
            assert answer.status_code == 403, host
            assert "answers to localhost" in answer.json()["message"]
    for host in (f"localhost:{port}", f"LOCALHOST:{port}", "localhost", f"[::1]:{port}", "127.0.0.1:9999"):
        assert api.call("GET", "/connectors", headers={"Host": host}).status_code == 200, host


def test_the_advertised_name_is_the_workers_own(tmp_path: Path) -> None:
    with served(settings(tmp_path, rest_advertised_host_name="Tunnel.example.com")) as api:
        assert api.call("GET", "/connectors", headers={"Host": "tunnel.example.com:1"}).status_code == 200
        assert api.call("GET", "/connectors", headers={"Host": "other.example.com:1"}).status_code == 403


def test_a_listener_for_others_has_any_name(tmp_path: Path) -> None:
    with served(
        settings(tmp_path, listeners="http://0.0.0.0:0", rest_basic_auth_user_info=":".join(LOGIN[:1]) + ":pw")
    ) as api:
        api.session.auth = (LOGIN[0], "pw")
        assert api.call("GET", "/connectors", headers={"Host": "worker.example.com:8083"}).status_code == 200
        elsewhere = {"Host": "worker.example.com:8083", "Origin": "https://evil.example.com"}
        assert api.call("POST", "/connectors/f1/restart", headers=elsewhere).status_code == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 204),
        ({"Origin": "OWN"}, 204),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://proxy.example.com"}, 204),
        ({"Sec-Fetch-Site": "none"}, 204),
        ({"Origin": "https://evil.example.com"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "OWN"}, 403),
    ],
)
def test_a_page_of_another_origin_changes_nothing(made: Api, headers: dict[str, str], status: int) -> None:
    headers = {name: made.base if value == "OWN" else value for name, value in headers.items()}
    assert made.call("GET", "/connectors", headers=headers).status_code == 200
    for method, path in (
        ("PUT", "/connectors/f1/pause"),
        ("POST", "/connectors/f1/restart"),
        ("DELETE", "/connectors/f1"),
    ):
        answer = made.call(method, path, headers=headers)
        assert (answer.status_code == 403) == (status == 403), (method, answer.text)
    assert made.connectors.names() == ([] if status == 204 else ["f1"])


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(authority: trustme.CA, tmp_path: Path) -> dict[str, str]:
    """The keys of an https listener, with a client's certificate and its files."""
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("client")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server.cert_chain_pems[0].write_to_path(str(tmp_path / "server.pem"))
    server.private_key_pem.write_to_path(str(tmp_path / "server.key"))
    client.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "client.pem"))
    return {
        "listeners": "https://127.0.0.1:0",
        "listeners.https.ssl.certfile": str(tmp_path / "server.pem"),
        "listeners.https.ssl.keyfile": str(tmp_path / "server.key"),
    }


def test_tls(tls: dict[str, str], tmp_path: Path) -> None:
    with served(settings(tmp_path, **tls)) as api:
        assert api.call("GET", "/connectors", verify=str(tmp_path / "ca.pem")).json() == []
        with pytest.raises(requests.exceptions.SSLError):
            api.call("GET", "/connectors")
        with pytest.raises(requests.exceptions.ConnectionError):
            requests.get(f"http://127.0.0.1:{api.listener.port}/connectors", timeout=10)


def test_clients_with_a_certificate(tls: dict[str, str], tmp_path: Path) -> None:
    authority = str(tmp_path / "ca.pem")
    keys = {**tls, "listeners.https.ssl.cafile": authority, "rest.basic.auth.user.info": ":".join(LOGIN)}
    stranger = trustme.CA().issue_cert("client")
    stranger.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "stranger.pem"))
    with served(settings(tmp_path, **keys)) as api:
        cert = str(tmp_path / "client.pem")
        assert api.call("GET", "/connectors", verify=authority, cert=cert, auth=LOGIN).json() == []
        assert api.call("GET", "/connectors", verify=authority, cert=cert).status_code == 401
        for other in (None, str(tmp_path / "stranger.pem")):
            with pytest.raises(requests.exceptions.ConnectionError):
                requests.get(f"{api.base}/connectors", verify=authority, cert=other, auth=LOGIN, timeout=10)


def test_a_key_that_is_encrypted(tls: dict[str, str], tmp_path: Path) -> None:
    path = Path(tls["listeners.https.ssl.keyfile"])
    key = load_pem_private_key(path.read_bytes(), None)
    sealed = BestAvailableEncryption(SECRET.encode())
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealed))
    opened = {**tls, "listeners.https.ssl.keyfile.password": SECRET}
    with served(settings(tmp_path, **opened)) as api:
        assert api.call("GET", "/connectors", verify=str(tmp_path / "ca.pem")).json() == []
    for wrong in (tls, {**opened, "listeners.https.ssl.keyfile.password": "x"}):
        with pytest.raises(HelenusError, match="cannot listen with TLS"):
            Api(settings(tmp_path, **wrong))


@pytest.mark.parametrize("key", ["certfile", "keyfile"])
def test_a_certificate_that_cannot_be_read(tls: dict[str, str], tmp_path: Path, key: str) -> None:
    with pytest.raises(HelenusError, match="cannot listen with TLS") as refused:
        Api(settings(tmp_path, **{**tls, f"listeners.https.ssl.{key}": str(tmp_path / "none")}))
    assert refused.value.kind is Kind.CONFIG


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(HelenusError, match="cannot listen"):
        Api(settings(tmp_path, listeners=f"http://127.0.0.1:{listener.getsockname()[1]}"))


@pytest.mark.parametrize(
    ("more", "event"),
    [
        ({"listeners": "http://0.0.0.0:0"}, "rest.open"),
        ({"listeners": "http://0.0.0.0:0", "rest.basic.auth.user.info": "a:b"}, "rest.plain"),
        ({"listeners": "http://localhost:0"}, None),
    ],
)
def test_a_listener_that_is_open_is_warned_of(tmp_path: Path, more: dict[str, str], event: str | None) -> None:
    with structlog.testing.capture_logs() as logs, served(settings(tmp_path, **more)) as api:
        assert api.call("GET", "/health/live").status_code == 200
    assert [line["event"] for line in logs] == ([event] if event else [])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listeners", "8083"),
        ("listeners", "http://h"),
        ("listeners", "ftp://h:1"),
        ("listeners", "http://a:1,http://b:2"),
        ("listeners", "https://h:1"),
        ("rest.basic.auth.user.info", "hunter2"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(HelenusError) as refused:
        settings(tmp_path, **{key: value})
    assert key in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_the_workers_id(tmp_path: Path) -> None:
    assert settings(tmp_path, listeners="http://h:8083").worker_id == "h:8083"
    assert settings(tmp_path, listeners="http://0.0.0.0:8083").worker_id == f"{socket.gethostname()}:8083"
    named = settings(tmp_path, listeners="http://0.0.0.0:8083", rest_advertised_host_name="public")
    assert named.worker_id == "public:8083"
    assert settings(tmp_path, listeners="http://[::1]:8083").listener == ("::1", 8083)


def test_no_module_is_imported_for_who_may_use_the_api(api: Api) -> None:
    """`this` prints when it is imported: whatever a module does then, anyone could have it done."""
    sys.modules.pop("this", None)
    foreign = {"transforms": "mine", "transforms.mine.type": "this:Zen"}
    config = {**CONFIG, "output.format": "key-value-json", **foreign}
    for method, path in (
        ("PUT", f"/connector-plugins/{PLUGIN}/config/validate"),
        ("PUT", "/connectors/foreign/config"),
        ("GET", "/connector-plugins/this:Zen/config"),
    ):
        answer = api.ask(method, path, {**config, "name": "foreign"} if method == "PUT" else None)
        assert "plugin.packages" in str(answer) or answer[0] == 404
    assert "this" not in sys.modules


def test_classes_of_named_packages_and_of_files_may_be_used() -> None:
    properties = {"transforms.mine.type": "acme.masks:Mask", "predicates.p.type": "acmes:P"}
    assert Model(ConnectorSettings, packages=("acme",)).foreign_classes(properties, {}) == ["predicates.p.type"]
    assert not Model(ConnectorSettings).foreign_classes(properties, properties)
