"""Random statements and faults from a seed, then a comparison of each connector's topic with its table.

    python -m bench chaos --seed N --minutes M [--faults NAME,…] [--connectors NAME,…] [--workers 2] [--verify]
    python -m bench chaos --seed N --minutes M --shrink
    python -m bench chaos --seed N --minutes M --data-centers 2 [--racks 2] [--tokens 16] [--agents local]

Cassandra nodes with an agent each, three if no option says otherwise, Kafka, a registry, and for each mode of a
connector a random table. The plan is the seed's; only how the servers take it differs between two runs. In the end all
processes run, what replicas missed is delivered or repaired, and each topic is compared with its table at ALL; the
records of a key must be in order, and once where that is promised. Exit status 1: there is a difference; each is shown
with its key's history.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path

from bench.chaos.cluster import ChaosCluster
from bench.chaos.compare import in_order_of_modes
from bench.chaos.fault_registry import KINDS
from bench.chaos.faults import kinds_for, kinds_for_given
from bench.chaos.given_cluster import GivenCluster, agent_names
from bench.chaos.machine_faults import CLOCK_FAULTS, DISK_FAULTS
from bench.chaos.modes import MODES, modes_for
from bench.chaos.plan import FaultKind, Plan, make_plan
from bench.chaos.run import ChaosResult, ChaosRun, stamped
from bench.chaos.shrink import shrink
from bench.chaos.stack_cluster import StackCluster
from bench.chaos.topology import Topology, draw_topology
from helenus_schemas.settings.properties import read_properties
from helenus_stack.errors import StackError


def main() -> None:
    options = parse_options(sys.argv[1:])
    topology = topology_for(options)
    modes = options.connectors or modes_for(topology)
    kinds = fault_kinds(options, modes)
    plan = make_plan(options.seed, options.minutes, kinds, modes, options.rate, topology.data_centers)
    if not options.cluster:
        print(topology)
    show_plan(plan)
    try:
        result = run_once(plan, options)
    except TimeoutError as error:
        sys.exit(f"error: {error}")
    if result.findings and options.shrink:
        smallest = shrink(plan, lambda smaller: is_failing(smaller, options))
        print(f"\nthe smallest plan that fails: {len(smallest.statements)} statements, {len(smallest.faults)} faults")
        show_plan(smallest)
        file = Path(f"chaos-{options.seed}.json").absolute()
        file.write_text(smallest.to_json())
        print(f"written to {file}")
    sys.exit(1 if result.findings else 0)


def parse_options(arguments: list[str]) -> argparse.Namespace:
    """Return the command's options; ends the program if they are wrong."""
    parser = argparse.ArgumentParser(
        "bench.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="default: another one each time")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=float, default=20, help="statements a second, over all tables")
    parser.add_argument("--faults", type=names_of(KINDS), default=[], metavar="NAME,…", help=", ".join(KINDS))
    parser.add_argument("--connectors", type=names_of(MODES), default=[], metavar="NAME,…", help=", ".join(MODES))
    parser.add_argument("--data-centers", type=int, choices=(1, 2), default=1, help="2: two nodes in each")
    parser.add_argument("--racks", type=int, choices=(1, 2), default=1, help="in each data centre")
    parser.add_argument("--tokens", type=int, choices=(1, 16), default=1, help="of each node; 16: random ones")
    parser.add_argument("--agents", choices=("all", "local"), default="all", help="local: in one data centre of two")
    parser.add_argument("--workers", type=int, choices=(1, 2), default=1, help="2: a group of group.id")
    parser.add_argument("--verify", action="store_true", help="have helenus-connector verify compare too")
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="a test cluster's properties (given_cluster.py)")
    parser.add_argument("--shrink", action="store_true", help="look for the smallest plan that still fails")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="a new directory, where logs and data stay")
    options = parser.parse_args(arguments)
    if options.cluster and options.shrink:
        parser.error("--shrink runs many times, on new servers each time: leave out --cluster")
    if options.cluster and (options.data_centers, options.racks, options.tokens, options.agents) != (1, 1, 1, "all"):
        parser.error("--cluster says where the nodes are: leave out --data-centers, --racks, --tokens and --agents")
    if options.agents == "local" and options.data_centers == 1:
        parser.error("--agents local needs --data-centers 2")
    if unfit := [name for name in options.connectors if name not in modes_for(topology_for(options))]:
        parser.error(f"{', '.join(unfit)} needs two data centres with agents in both")
    return options


def topology_for(options: argparse.Namespace) -> Topology:
    """Return where the nodes are, by the options and the seed."""
    return draw_topology(options.seed, options.data_centers, options.racks, options.tokens, options.agents == "local")


def names_of(possible: Collection[str]) -> Callable[[str], list[str]]:
    """Return a parser of names with commas between, each of which is possible."""

    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        if unknown := [name for name in names if name not in possible]:
            raise argparse.ArgumentTypeError(f"there is no {', '.join(unknown)}")
        return names

    return parse


def fault_kinds(options: argparse.Namespace, modes: list[str]) -> list[FaultKind]:
    """Return the kinds of faults that are planned."""
    workers = worker_names(options.workers, modes)
    try:
        if not options.cluster:
            return kinds_for(options.faults, workers, topology_for(options))
        properties = read_properties(options.cluster)
        points = properties.get("cassandra.contact.points", "").split(",")
        nodes = [f"cassandra{number + 1}" for number, _ in enumerate(points)] if properties.get("nodetool") else []
        return kinds_for_given(options.faults, workers, agent_names(properties), nodes)
    except ValueError as error:
        sys.exit(f"error: {error}")


def worker_names(count: int, modes: list[str]) -> list[str]:
    """Return the names of the workers that there are."""
    if count == 1:
        return ["worker1"]
    has_state = [name for name in modes if MODES[name].has_state]
    return [
        *(["worker1", "worker2"] if len(has_state) < len(modes) else []),
        *(["worker-state"] if has_state else []),
    ]


def show_plan(plan: Plan) -> None:
    """Print seed, tables and faults."""
    print(f"seed {plan.seed}, {plan.minutes:g} minutes, {len(plan.statements)} statements", flush=True)
    for create in plan.tables.values():
        print(f"  {create}")
    for fault in plan.faults:
        print(f"  {fault.line_at(fault.second)}")


def is_failing(plan: Plan, options: argparse.Namespace) -> bool:
    """Run a plan; return whether it finds a difference. One whose servers do not start finds none."""
    try:
        return bool(run_once(plan, options).findings)
    except (StackError, TimeoutError) as error:
        print(f"no run: {str(error).splitlines()[0]}", flush=True)
        return False


def make_cluster(plan: Plan, directory: Path, options: argparse.Namespace) -> ChaosCluster:
    """Return the cluster that a plan runs on; it is not entered."""
    if options.cluster:
        return GivenCluster(options.cluster.absolute(), directory, list(plan.tables), options.workers)
    has_disks = any(fault.name in DISK_FAULTS for fault in plan.faults)
    clocked = {fault.target for fault in plan.faults if fault.name in CLOCK_FAULTS}
    return StackCluster(directory, list(plan.tables), options.workers, topology_for(options), has_disks, clocked)


def run_once(plan: Plan, options: argparse.Namespace) -> ChaosResult:
    """Run a plan on new servers, and print what it finds."""
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="chaos-", dir=options.keep))

    def say(line: str) -> None:
        print(stamped(line), flush=True)

    try:
        result = ChaosRun(plan, make_cluster(plan, directory, options), say, options.verify).execute()
    finally:
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)
    for finding in in_order_of_modes(result.findings):
        print(f"DIFFERENCE {finding}")
    print(f"seed {plan.seed}: {result.summary()}", flush=True)
    return result
