"""The command `helenus-stack`: real Cassandra, Kafka, schema registry and Pulsar on this machine."""

from __future__ import annotations

import errno
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import click
import yaml

from helenus_schemas import __version__
from helenus_stack import cassandra, kafka, pulsar
from helenus_stack.errors import StackError
from helenus_stack.progress import Terminal
from helenus_stack.settings import LogName
from helenus_stack.stack import Stack

MAY_WRITE = "choose a --dir that you may write, and see that the cache is yours (~/.cache/helenus)"

directory_option = click.option(
    "--dir",
    "directory",
    default=".helenus-stack",
    envvar="HELENUS_STACK_DIR",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the servers keep their data, logs and settings.",
)


class Errors(click.Group):
    """Commands whose StackErrors, and refused files, end as one message and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except StackError as error:
            if error.detail:
                click.echo(error.detail, err=True)
            raise click.ClickException(error.summary) from error
        except BrokenPipeError:  # of `| head`: click ends quietly
            raise
        except OSError as error:
            advice = "make room, or choose a --dir on another disk" if error.errno == errno.ENOSPC else MAY_WRITE
            summary = StackError(error.strerror or str(error), str(error.filename or Path.cwd()), advice).summary
            raise click.ClickException(summary) from error


@click.group(cls=Errors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="helenus-stack")
def main() -> None:
    """Cassandra with CDC, Kafka and a schema registry, or Pulsar, as local processes on loopback."""
    # A termination unwinds like a Ctrl-C, so that what was begun is cleaned up.
    signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _pairs(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], Any]:
    """A click callback that makes a dict of KEY=VALUE options; None if there are none."""

    def callback(_ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any] | None:
        pairs = {}
        for text in values:
            key, equals, value = text.partition("=")
            if not equals or not key:
                raise click.BadParameter(f"{text!r} is not KEY=VALUE")
            pairs[key] = parse(value)
        return pairs or None

    return callback


def _heap(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"\d+[kmgKMG]", value):
        raise click.BadParameter(f"{value!r} is not a whole number with its unit, such as 512m or 2g")
    return value


@main.command()
@directory_option
@click.argument("servers", nargs=-1, metavar="[SERVER]...")
@click.option("--nodes", type=click.IntRange(1, 4), help="Cassandra nodes.  [default: 1]")
@click.option("--cassandra", type=click.Choice(list(cassandra.VERSIONS)), help="Its version.  [default: 5.0]")
@click.option("--kafka", type=click.Choice(list(kafka.VERSIONS)), help="Its version.  [default: 4.3]")
@click.option("--pulsar", type=click.Choice(list(pulsar.VERSIONS)), help="Its version.  [default: 4.0]")
@click.option("--secure", is_flag=True, default=None, help="TLS, and passwords or tokens.")
@click.option(
    "--log",
    type=click.Choice(["kafka", "pulsar", "both"]),
    help="The message broker of events and records.  [default: kafka]",
)
@click.option("--connect", is_flag=True, default=None, help="Also a Kafka Connect worker with a JDBC sink.")
@click.option("--postgres", is_flag=True, default=None, help="Also a PostgreSQL for that sink.")
@click.option(
    "--port-offset", type=click.IntRange(0, 20_000), help="Added to every standard port.  [default: first free]"
)
@click.option("--heap", callback=_heap, metavar="SIZE", help="Heap of each Cassandra node.  [default: 512m]")
@click.option(
    "--brief/--no-brief",
    default=None,
    help="Start with less work, and take less load: for minutes, not for days.  [default: brief]",
)
@click.option(
    "--cassandra-yaml",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_pairs(yaml.safe_load),
    help="Overrides a setting of cassandra.yaml; repeatable.",
)
@click.option(
    "--kafka-property",
    "kafka_properties",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_pairs(str),
    help="Overrides a setting of the broker; repeatable.",
)
@click.option(
    "--pulsar-property",
    "pulsar_properties",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_pairs(str),
    help="Overrides a setting of Pulsar; repeatable.",
)
@click.option("--foreground", is_flag=True, help="Stay, and stop the servers when this command ends.")
def up(directory: Path, servers: tuple[str, ...], foreground: bool, **settings: Any) -> None:
    """Start what doesn't run yet, and wait until it is ready.

    SERVER is cassandra, kafka, registry, pulsar, connect or postgres; default: all that the stack has. Settings are
    remembered in the directory.
    """
    progress = Terminal()
    stack = Stack(directory, only=servers, progress=progress, **settings)
    if not foreground:
        with progress.spinning():
            status = stack.up()
        click.echo(status.table())
        return
    with stack:
        click.echo(stack.status().table())
        _stay(stack, servers)


def _stay(stack: Stack, names: tuple[str, ...]) -> None:
    """Returns at Ctrl-C; raises StackError when a server dies."""
    stack.progress.say("up; Ctrl-C stops it")
    try:
        while True:
            for server in stack.select(names):
                if stack.process(server).life == "died":
                    raise StackError(f"{server.name} died", str(server.log), "read its log, then start again")
            time.sleep(1)
    except KeyboardInterrupt:
        stack.progress.say("stopping")


@main.command()
@directory_option
@click.option("--delete/--keep-data", help="Remove the servers' data too.  [default: keep it]")
def down(directory: Path, delete: bool) -> None:
    """Stop everything."""
    Stack(directory, progress=Terminal()).down(delete=delete)


@main.command()
@directory_option
@click.argument("server")
def start(directory: Path, server: str) -> None:
    """Start one SERVER and wait until it is ready."""
    progress = Terminal()
    with progress.spinning():
        Stack(directory, progress=progress).start(server)


@main.command()
@directory_option
@click.argument("server")
@click.option("--kill", is_flag=True, help="Like kill -9.")
def stop(directory: Path, server: str, kill: bool) -> None:
    """Stop one SERVER."""
    stack = Stack(directory, progress=Terminal())
    (stack.kill if kill else stack.stop)(server)


@main.command()
@directory_option
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(directory: Path, as_json: bool) -> None:
    """Show the servers, and where clients connect. Exit code 1 unless all are ready."""
    report = Stack(directory).status()
    click.echo(report.json() if as_json else report.table())
    if not report.ready:
        sys.exit(1)


@main.command(short_help="Show the end of the logs.")
@directory_option
@click.argument("server", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on as lines are added.")
@click.option("-n", "--lines", default=20, show_default=True, help="Lines from the end.")
def logs(directory: Path, server: str | None, follow: bool, lines: int) -> None:
    """Show the end of the logs, of one SERVER or of all; also of a demo's `agent` or `connector`."""
    stack = Stack(directory)
    of_demo = stack.directory / "logs" / f"{server}.log"
    ours = server in ("agent", "connector") and of_demo.exists()
    named = [of_demo] if ours else [s.log for s in stack.select([server] if server else [])]
    files = [log for log in named if log.exists()]
    if not files:
        raise StackError("there are no logs yet", str(stack.directory / "logs"), "run helenus-stack up")
    command = ["tail", "-n", str(lines), *(["-f"] if follow else []), *map(str, files)]
    sys.exit(subprocess.run(command).returncode)


@main.command()
@directory_option
@click.option("--keep", is_flag=True, help="Leave everything running at the end.")
@click.option(
    "--log",
    type=click.Choice(["kafka", "pulsar"]),
    default="kafka",
    show_default=True,
    help="The message broker of events and records.",
)
def demo(directory: Path, keep: bool, log: LogName) -> None:
    """Show a statement become an event and a record, on real servers.

    Exit code 1 unless topic and table agree at the end.
    """
    from helenus_stack.demo import run  # imported late, as below: the libraries of the path take a second to load

    sys.exit(run(directory, keep, log))


@main.command()
@directory_option
@click.argument("statement")
def cql(directory: Path, statement: str) -> None:
    """Execute one CQL STATEMENT in Cassandra."""
    from helenus_stack.cql import execute

    for line in execute(Stack(directory).status(), statement):
        click.echo(line)


@main.command()
@directory_option
@click.argument("topic")
@click.option("--all", "whole", is_flag=True, help="Also what is there already.")
def watch(directory: Path, topic: str, whole: bool) -> None:
    """Show what arrives in a TOPIC, decoded, until Ctrl-C."""
    from helenus_stack.watch import watch as arrivals

    with suppress(KeyboardInterrupt):
        for line in arrivals(Stack(directory).status(), topic, whole):
            click.echo(line)


if __name__ == "__main__":
    main()
