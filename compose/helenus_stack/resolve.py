"""Two ways to download locked artifacts: Maven where it is installed, else the Ivy that comes inside pyspark.

Neither is given a host: mirrors and proxies are configured in the clients' own settings. Both download exactly the
listed files, because each is asked for by its full coordinates and nothing transitively.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import tenacity

from helenus_schemas.names import counted
from helenus_stack.errors import StackError
from helenus_stack.jars import Artifact
from helenus_stack.java import java_home
from helenus_stack.progress import Progress

MAVEN_PLUGIN = "3.8.1"
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT")
"""Variables of other programs that name a PEM file of the authorities to trust; the first that is set counts."""

PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def resolve(artifacts: Sequence[Artifact], folder: Path, progress: Progress) -> None:
    """Downloads artifacts into `folder`, each under its `Artifact.file` name; raises StackError."""
    has_maven = shutil.which("mvn") and (shutil.which("java") or os.environ.get("JAVA_HOME"))
    (maven if has_maven else ivy)(artifacts, folder, progress)


def maven(artifacts: Sequence[Artifact], folder: Path, progress: Progress, parents: Sequence[Artifact] = ()) -> None:
    """Downloads with `mvn`, through the user's local repository and settings. Empty POMs stand in for `parents` of
    artifacts that no repository has.
    """
    items = "\n".join(
        f"<artifactItem><groupId>{escape(a.group)}</groupId><artifactId>{escape(a.name)}</artifactId>"
        f"<version>{escape(a.version)}</version><type>{escape(a.type)}</type>"
        f"<classifier>{escape(a.classifier)}</classifier></artifactItem>"
        for a in artifacts
    )
    with tempfile.TemporaryDirectory() as project:
        stand_ins = _stand_ins(parents, Path(project) / "stand-ins") if parents else ""
        (Path(project) / "pom.xml").write_text(_pom(items, folder, stand_ins))
        _download(["mvn", "--batch-mode", "dependency:copy"], Path(project), artifacts, progress)


def _pom(items: str, folder: Path, repositories: str) -> str:
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>helenus</groupId><artifactId>stack</artifactId><version>1</version><packaging>pom</packaging>{repositories}
<build><plugins><plugin><groupId>org.apache.maven.plugins</groupId><artifactId>maven-dependency-plugin</artifactId>
<version>{MAVEN_PLUGIN}</version><configuration><outputDirectory>{escape(str(folder))}</outputDirectory>
<artifactItems>{items}</artifactItems></configuration></plugin></plugins></build></project>"""


def _stand_ins(parents: Sequence[Artifact], folder: Path) -> str:
    """A repository of empty POMs, as an element of a POM."""
    for a in parents:
        path = folder / a.group.replace(".", "/") / a.name / a.version / f"{a.name}-{a.version}.pom"
        path.parent.mkdir(parents=True)
        path.write_text(
            f"<project><modelVersion>4.0.0</modelVersion><groupId>{escape(a.group)}</groupId>"
            f"<artifactId>{escape(a.name)}</artifactId><version>{escape(a.version)}</version>"
            "<packaging>pom</packaging></project>"
        )
    url = escape(folder.as_uri())
    return f"<repositories><repository><id>stand-ins</id><url>{url}</url></repository></repositories>"


def ivy(artifacts: Sequence[Artifact], folder: Path, progress: Progress) -> None:
    """Downloads with Ivy. Its cache is next to `folder`: a download that failed goes on, a complete one leaves none."""
    # Of several dependencies on one module Ivy keeps one: classifiers have to be artifacts of a single dependency.
    modules = groupby(sorted(artifacts, key=_module), key=_module)
    dependencies = "\n".join(
        f"<dependency org={quoteattr(group)} name={quoteattr(name)} rev={quoteattr(version)} transitive='false'"
        f" conf='default->default'>{''.join(map(_ivy_artifact, members))}</dependency>"
        for (group, name, version), members in modules
    )
    # conflict manager "all": the servers' sets hold different versions of the same libraries.
    module = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="helenus" module="stack"/><configurations><conf name="default"/></configurations>
<dependencies>{dependencies}<conflict manager="all"/></dependencies></ivy-module>"""
    with tempfile.TemporaryDirectory() as project:
        (Path(project) / "ivy.xml").write_text(module)
        command = [str(java_home(17, progress) / "bin/java"), "-jar", str(_ivy_jar()), "-ivy", "ivy.xml"]
        command += ["-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]", "-confs", "default"]
        cache = folder.parent / ".ivy"
        _download([*command, "-cache", str(cache)], Path(project), artifacts, progress)
        shutil.rmtree(cache, ignore_errors=True)


def _module(artifact: Artifact) -> tuple[str, str, str]:
    return artifact.group, artifact.name, artifact.version


def _ivy_artifact(artifact: Artifact) -> str:
    kind = quoteattr(artifact.type)
    classifier = f" m:classifier={quoteattr(artifact.classifier)}" if artifact.classifier else ""
    return f"<artifact name={quoteattr(artifact.name)} type={kind} ext={kind}{classifier}/>"


def _ivy_jar() -> Path:
    pyspark = importlib.util.find_spec("pyspark")
    ivy_jars = sorted(Path(pyspark.origin).parent.glob("jars/ivy-*.jar")) if pyspark and pyspark.origin else []
    if not ivy_jars:
        raise StackError(
            "neither Maven nor pyspark's Ivy is here",
            "PATH",
            "install Maven, or what the stack needs: pip install . ./compose in a checkout",
        )
    return ivy_jars[-1]


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(StackError),
    stop=tenacity.stop_after_attempt(3),
    wait=tenacity.wait_fixed(2),
    reraise=True,
)
def _download(command: list[str], folder: Path, artifacts: Sequence[Artifact], progress: Progress) -> None:
    """Runs a client and shows its progress. A further attempt does not download again what is there already."""
    log = folder / "log"
    environment = {**os.environ, **trust(folder)}
    started = time.monotonic()
    size = f"{sum(artifact.size for artifact in artifacts) / 1e6:.0f} MB"
    progress.say(
        f"fetching {counted(len(artifacts), 'file')}, {size}, with {'Maven' if command[0] == 'mvn' else 'Ivy'}"
    )
    with (
        open(log, "w") as output,
        subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output) as client,
    ):
        try:
            while client.poll() is None:
                time.sleep(0.2)
                progress.waiting(f"{_progress(log.read_text(), artifacts)}, {time.monotonic() - started:.0f} s")
        except BaseException:
            client.kill()
            raise
    if client.returncode:
        raise StackError(
            "the jars could not be downloaded",
            " ".join(command[:2]),
            "check the network, and proxy and mirror in the client's own settings, then run again to go on; "
            f"behind an authority of your own: {CERTIFICATES[0]}=FILE with all certificates in PEM",
            detail="\n".join(log.read_text().splitlines()[-15:]),
        )
    progress.say(f"fetched in {time.monotonic() - started:.0f} s")


def trust(folder: Path) -> dict[str, str]:
    """The variable by which Java trusts the authorities of CERTIFICATES, in a store that is written into `folder`.

    Java reads neither PEM nor these variables. Empty if none is set, or if JAVA_TOOL_OPTIONS or MAVEN_OPTS names a
    store. Raises StackError if the file can't be read.
    """
    options = os.environ.get("JAVA_TOOL_OPTIONS", "")
    named = next((name for name in CERTIFICATES if os.environ.get(name)), None)
    if named is None or "javax.net.ssl.trustStore" in options + os.environ.get("MAVEN_OPTS", ""):
        return {}
    # Imported late: only a download needs it.
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    certificates = set()
    try:
        text = Path(os.environ[named]).read_bytes()
    except OSError as error:
        text, why = b"", str(error.strerror)
    else:
        why = "it has no certificate in PEM"
    for pem in PEM.findall(text):
        # Bundles have some that break the rules, which their owners have not replaced: they are left out.
        with suppress(ValueError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            certificates.add(x509.load_pem_x509_certificate(pem))
    if not certificates:
        where = f"{named}={os.environ[named]}"
        raise StackError(f"the authorities to trust can't be read: {why}", where, "name a PEM file")
    trusted = [
        pkcs12.PKCS12Certificate(trusted_one, str(number).encode()) for number, trusted_one in enumerate(certificates)
    ]
    store = folder / "trust.p12"
    store.write_bytes(pkcs12.serialize_java_truststore(trusted, BestAvailableEncryption(b"helenus")))
    own = f"-Djavax.net.ssl.trustStore={store} -Djavax.net.ssl.trustStorePassword=helenus"
    return {"JAVA_TOOL_OPTIONS": f"{options} {own} -Djavax.net.ssl.trustStoreType=PKCS12".strip()}


def _progress(log: str, artifacts: Sequence[Artifact]) -> str:
    """How far a client is, by what it printed; Ivy looks everything up before it downloads anything."""
    wanted = {artifact.file for artifact in artifacts}
    fetched = len(wanted.intersection(re.findall(r"Downloaded .*/(\S+)", log))) + log.count("SUCCESSFUL")
    files = len(re.findall(r"^\tfound ", log, re.MULTILINE))
    return f"{'fetched' if fetched else 'looked up'} {fetched or files} of {counted(len(wanted), 'file')}"
