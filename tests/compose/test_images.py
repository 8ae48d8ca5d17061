"""The steps of the Dockerfiles, run as a script in a clean directory: what they build works, and is all they need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helenus_stack.java import wheel_home
from helenus_stack.progress import Silent

ROOT = Path(__file__).resolve().parents[2]
LARGE = pytest.mark.skipif("HELENUS_IMAGES" not in os.environ, reason="installs 600 MB: HELENUS_IMAGES=1 runs it")


def steps(dockerfile: str) -> list[tuple[str, str]]:
    """(instruction, its text) of the first stage."""
    lines = (ROOT / dockerfile).read_text().split("\nFROM ")[1].splitlines()[1:]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines if line and not line.startswith("#")]


def copy_context(target: Path) -> None:
    """What `COPY . .` copies: what .dockerignore, which begins with `*`, takes back in."""
    first, *rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert first == "*"
    left_out = shutil.ignore_patterns(*(rule.removeprefix("**/") for rule in rules if rule.startswith("**/")))
    for rule in rules:
        source = ROOT / rule.removeprefix("!")
        if rule.startswith("!") and source.is_dir():
            shutil.copytree(source, target / rule[1:], ignore=left_out)
        elif rule.startswith("!"):
            shutil.copy(source, target / rule[1:])


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.parametrize("part", ["agent", pytest.param("connector", marks=LARGE)])
def test_the_steps_of_a_build(part: str, tmp_path: Path) -> None:
    source, target = tmp_path / "src", tmp_path / "opt"
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
    environment |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "REQUESTS_"))}
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for instruction, text in steps(f"{part}/Dockerfile"):
        if instruction == "WORKDIR":
            source.mkdir()
        elif instruction == "COPY":
            if text == ". .":
                copy_context(source)
            else:
                *names, copy_target = text.split()
                assert copy_target == "./"
                for name in names:
                    shutil.copy(ROOT / name, source)
        else:
            assert instruction == "RUN"
            command = text.replace("/opt/helenus", str(target)).replace("python3.11", version)
            command = command.replace("--no-cache-dir ", "")
            process = subprocess.run(
                ["sh", "-c", command], cwd=source, env=environment, capture_output=True, text=True, timeout=540
            )
            assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    program = target / "bin" / f"helenus-{part}"
    bare = {"PATH": str(target / "bin"), "HOME": str(tmp_path)}
    if part == "connector":  # whose image has Java
        bare["JAVA_HOME"] = str(wheel_home(17, Silent()))
    shown = subprocess.run([program, "--help"], cwd=tmp_path, env=bare, capture_output=True, text=True, check=True)
    assert "validate" in shown.stdout
    assert not (target / "bin" / "helenus-stack").exists()
    module = {
        "agent": "helenus_agent/commitlog/decoder",
        "connector": "helenus_connector/shape/envelope/direct_records",
    }[part]
    assert list(target.glob(f"lib/python3*/site-packages/{module}*.so")), f"{module} is not compiled"
    files = {"agent": ["agent.properties"], "connector": ["worker.properties", "connectors/shop-orders.properties"]}
    for log in ("kafka", "pulsar"):
        arguments = [name.replace("/", "-") for name in files[part]]
        for name, ours in zip(files[part], arguments, strict=True):  # this machine may have a worker at their port
            text = (ROOT / "compose" / "properties" / log / name).read_text()
            (tmp_path / ours).write_text(text.replace("0.0.0.0:8083", "0.0.0.0:0"))
        process = subprocess.run(
            [program, "validate", *arguments], cwd=tmp_path, env=bare, capture_output=True, text=True
        )
        if part == "connector":
            assert process.returncode == 0, process.stderr
        else:  # it looks for cdc_raw too, and names nothing else
            assert "cdc_raw is not a directory" in process.stderr
    # What `log=pulsar` needs as well.
    modules = "helenus_sinks.pulsar.log" + (", helenus_connector.log._pulsar_planner" if part == "connector" else "")
    subprocess.run([target / "bin" / "python", "-c", f"import {modules}"], cwd=tmp_path, env=bare, check=True)
