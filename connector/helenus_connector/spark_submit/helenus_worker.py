"""`helenus-connector` for `spark-submit`, which takes a file: `spark-submit helenus_worker.py worker.properties …`."""

from __future__ import annotations

from helenus_connector.cli import main

if __name__ == "__main__":
    main(prog_name="helenus-connector")
