"""What operators are given: the reference of every key, example files that load, units that systemd takes."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import javaproperties
import pytest

from helenus_agent.config import AgentSettings
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_schemas.settings.model import Group, Settings

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES: dict[str, type[Settings]] = {
    "agent/agent.properties": AgentSettings,
    "connector/worker.properties": WorkerSettings,
    "connector/table.properties": ConnectorSettings,
}
UNITS = ("agent/helenus-agent.service", "connector/helenus-connector.service")


def test_the_reference_is_that_of_the_models() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "reference.py"))["page"]()
    assert (ROOT / "docs" / "configuration.md").read_text() == page, "run `make reference`"


def test_every_key_of_datastax_is_in_its_page() -> None:
    tables = runpy.run_path(str(ROOT / "docs" / "reference.py"))["datastax_keys"]()
    assert tables in (ROOT / "docs" / "datastax.md").read_text(), "run `make reference`"


@pytest.mark.parametrize("model", EXAMPLES.values())
def test_every_key_is_described(model: type[Settings]) -> None:
    assert {field.alias for field in model.model_fields.values()} <= model.texts().keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_load(name: str, tmp_path: Path) -> None:
    """As they are, and with every line that is commented out."""
    (tmp_path / "secrets.properties").write_text("cassandra=x\nkafka=x\npulsar=x\nregistry=me:x\nrest=me:x\n")
    text = (ROOT / name).read_text()
    commented = "\n".join(
        line[1:] if line.startswith("#") and "=" in line and line[1] not in " #" else line for line in text.splitlines()
    )
    assert len(javaproperties.loads(commented)) > len(javaproperties.loads(text))
    for number, content in enumerate((text, commented)):
        path = tmp_path / f"{number}.properties"
        path.write_text(content.replace("/etc/helenus/secrets.properties", str(tmp_path / "secrets.properties")))
        EXAMPLES[name].load(path)


def test_expert_keys_are_the_last_section_of_each_file() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "reference.py"))["page"]()
    for part in page.split("\n## ")[1:]:
        title, *sections = part.split("\n### ")
        models: dict[str, type[Settings]] = {"The agent": AgentSettings, "A connector": ConnectorSettings}
        model = models.get(title.splitlines()[0])
        if model is None:  # the worker has none
            assert "Expert" not in part
            continue
        expert = {
            field.alias
            for field in model.model_fields.values()
            if any(isinstance(note, Group) and note.expert for note in field.metadata)
        }
        [last] = [section for section in sections if section.startswith("Expert\n")]
        assert last == [section for section in sections if "| default |" in section][-1]
        assert set(re.findall(r"^\| `(\S+)` ", last, re.MULTILINE)) == expert != set()


MONITORING = ROOT / "docs" / "monitoring.md"


def test_the_tables_of_monitoring_are_those_of_the_code() -> None:
    page = MONITORING.read_text()
    assert runpy.run_path(str(ROOT / "docs" / "reference.py"))["monitoring"](page) == page, "run `make reference`"


def test_advice_on_what_is_gone_is_no_longer_given() -> None:
    monitoring = runpy.run_path(str(ROOT / "docs" / "reference.py"))["monitoring"]
    page = MONITORING.read_text()
    with pytest.raises(ValueError, match=r"`agent\.vanished`"):
        monitoring(page.replace("| `agent.failed`, ", "| `agent.vanished`, "))
    # Of a new event there is none yet; what is generated is written over.
    new = re.sub(r"^\| `connector.failed` .*\n", "", page, flags=re.MULTILINE)
    assert "| `connector.failed` |  |" in monitoring(new)
    assert monitoring(page.replace("| `HelenusAgentDown` | critical |", "| `HelenusAgentDown` | warning |")) == page


def test_events_of_one_level_with_the_same_text_share_a_row() -> None:
    monitoring = runpy.run_path(str(ROOT / "docs" / "reference.py"))["monitoring"]
    page = MONITORING.read_text()
    [text] = re.findall(r"^\| `gate.damaged`, `unconfirmed.damaged` \| (.*) \|$", page, re.MULTILINE)
    apart = page.replace("| `gate.damaged`, `unconfirmed.damaged` |", "| `gate.damaged` |").replace(
        "\n### Info\n", f"| `unconfirmed.damaged` | {text} |\n\n### Info\n"
    )
    assert apart != page
    assert monitoring(apart) == page


def test_every_event_of_the_log_is_listed_and_explained_and_no_other() -> None:
    logged: set[str] = set()
    for folder in ("agent", "connector", "schemas", "sinks"):
        for path in (ROOT / folder).rglob("*.py"):
            logged.update(
                re.findall(r"""\.(?:debug|info|warning|error)\(\s*"([a-z_-]+\.[a-z_-]+)\"""", path.read_text())
            )
    assert len(logged) > 30
    _, log = MONITORING.read_text().split("\n## Log events\n")
    rows = re.findall(r"^\| (`.*?`) \| (.*) \|$", log, re.MULTILINE)
    assert sorted(event.strip("`") for events, _ in rows for event in events.split(", ")) == sorted(logged)
    assert [events for events, note in rows if not note.strip()] == [], "say in the last column what to do"


@pytest.mark.parametrize("name", UNITS)
def test_units_restart_after_transient_errors_and_are_sandboxed(name: str) -> None:
    lines = [line.strip() for line in (ROOT / name).read_text().splitlines()]
    for needed in (
        "Restart=on-failure",
        "RestartPreventExitStatus=2",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "PrivateTmp=yes",
        "ProtectProc=invisible",
        "UMask=0077",
        "LimitNOFILE=65536",
        "CapabilityBoundingSet=",
    ):
        assert needed in lines, needed


@pytest.mark.parametrize("names", [(), ("a b.properties", "c.properties")])
def test_the_connector_s_unit_starts_with_the_files_that_are_there(names: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "connectors").mkdir()
    files = [str(tmp_path / "connectors" / name) for name in names]
    for file in files:
        Path(file).touch()
    [line] = re.findall("^ExecStart=(.*)$", (ROOT / "connector/helenus-connector.service").read_text(), re.MULTILINE)
    line = line.replace("/etc/helenus", str(tmp_path)).replace("/opt/helenus/bin/helenus-connector", "printf '%s\\n'")
    command = line.removeprefix("/bin/sh -c '").removesuffix("'").replace("$$", "$")
    process = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert process.stdout.splitlines() == [f"{tmp_path}/worker.properties", *files], process.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_units(name: str, tmp_path: Path) -> None:
    unit = tmp_path / Path(name).name
    # The programs are not where a package puts them: any that exists will do.
    unit.write_text((ROOT / name).read_text().replace("ExecStart=/opt/helenus/bin/", "ExecStart=/bin/true "))
    process = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    ours = [line for line in process.stderr.splitlines() if unit.name in line]
    assert ours == []
    assert process.returncode == 0, process.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", UNITS)
def test_the_units_expose_little(name: str) -> None:
    """At most 1.7 of 10, as systemd counts: what is left is the network, which both need."""
    command = ["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=17", str(ROOT / name)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "unrecognized option" in process.stderr:
        pytest.skip("systemd before 250 rates only what it runs")
    assert process.returncode == 0, process.stdout + process.stderr


def test_the_readme_says_what_the_tests_start() -> None:
    readme = runpy.run_path(str(ROOT / "docs" / "tested.py"))["readme"]
    page = (ROOT / "README.md").read_text()
    assert readme(page) == page, "run `make reference`"
    with pytest.raises(ValueError, match="0 rows Spark"):
        readme(page.replace("| Spark |", "| Flink |"))
