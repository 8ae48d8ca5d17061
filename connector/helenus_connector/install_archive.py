"""Make the archive of Java's classes of an installation, as for an image:
`python -m helenus_connector.install_archive [DIRECTORY]`.

It runs Spark for a moment, with a query of no topics, and archives what Java has loaded. No worker of the installation
has to make one then, nor needs a place to write one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from helenus_connector._command_line import errors_shown
from helenus_connector.config.run_directory import make, remove
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.query.class_archive import INSTALLED, LISTED
from helenus_connector.query.spark_session import class_archive, run_task, start_session
from helenus_connector.query.stream import warm_up
from helenus_schemas.service import logs


def main() -> None:
    """Make the archive, in the installation or a directory, and say where it is. Ends with status 1 or 2, and a line on
    standard error, if it can't.
    """
    target = Path(sys.argv[1]) if sys.argv[1:] else INSTALLED
    logs.configure()
    with errors_shown():
        directory = make()
        try:
            worker = WorkerSettings.from_properties(
                {"bootstrap.servers": "none:9092", "checkpoint.dir": str(directory), "spark.master": "local[2]"}, "none"
            )
            archive = class_archive(worker, directory)
            if archive is None:
                sys.exit("Java's options or Spark's class path speak against an archive of classes")
            if (file := archive.find()) is not None:
                click.echo(file)
                return
            spark = start_session(worker, directory)
            run_task(spark)
            warm_up(worker, spark, directory)
            spark.stop()
            click.echo(archive.make(directory / LISTED, target, is_private=target != INSTALLED))
        finally:
            remove(directory)


if __name__ == "__main__":
    main()
