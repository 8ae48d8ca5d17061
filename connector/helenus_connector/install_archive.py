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


@click.command(short_help="Make the archive of Java's classes of an installation.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=INSTALLED)
def main(directory: Path) -> None:
    """Make the archive of Java's classes that Spark loads, with which a worker starts in less time, in DIRECTORY, which
    is the installation's own by default, and say where it is.

    Ends with status 1 or 2, and a line on standard error, if it can't.
    """
    logs.configure()
    with errors_shown():
        run = make()
        try:
            worker = WorkerSettings.from_properties(
                {"bootstrap.servers": "none:9092", "checkpoint.dir": str(run), "spark.master": "local[2]"}, "none"
            )
            archive = class_archive(worker, run)
            if archive is None:
                sys.exit("Java's options or Spark's class path speak against an archive of classes")
            file = archive.find()
            if file is not None and file.parent == directory.absolute():
                click.echo(file)
                return
            spark = start_session(worker, run)
            run_task(spark)
            warm_up(worker, spark, run)
            spark.stop()
            click.echo(archive.make(run / LISTED, directory, is_private=directory != INSTALLED))
        finally:
            remove(run)


if __name__ == "__main__":
    main(prog_name="python -m helenus_connector.install_archive")
