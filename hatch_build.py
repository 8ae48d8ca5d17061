"""Compiles a few modules, where there is a C compiler; without one the package is plain Python.

`HELENUS_PURE=1` switches it off. A wheel holds the .py, the .pxd and the extension, which wins at import; an editable
install gets the extension beside the source. The C that Cython makes stays in a temporary directory.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).resolve().parent
MODULES = (
    "agent/helenus_agent/commitlog/decoder.py",
    "schemas/helenus_schemas/codec/wire_bytes.py",
    "schemas/helenus_schemas/event/own_format.py",
    "schemas/helenus_schemas/event/row_cursor.py",
    "sinks/helenus_sinks/pulsar/_entries.py",
    "connector/helenus_connector/interfaces/admitted_change.py",
    "connector/helenus_connector/interfaces/resolved_key.py",
    "connector/helenus_connector/gate/_slots.py",
    "connector/helenus_connector/gate/_admission.py",
    "connector/helenus_connector/reread/_key_read.py",
    "connector/helenus_connector/cassandra_rows/row_images.py",
    "connector/helenus_connector/reread/_row_reads.py",
    "connector/helenus_connector/reread/_row_proofs.py",
    "connector/helenus_connector/reread/_row_outcomes.py",
    "connector/helenus_connector/pipeline/_publisher.py",
    "connector/helenus_connector/shape/envelope/value_writer.py",
    "connector/helenus_connector/shape/envelope/_changed_row.py",
    "connector/helenus_connector/shape/envelope/direct_records.py",
    "connector/helenus_connector/shape/row/_row_headers.py",
    "connector/helenus_connector/shape/row/_row_records.py",
    "connector/helenus_connector/shape/envelope/_direct_rows.py",
    "connector/helenus_connector/resolve/none.py",
    "schemas/helenus_schemas/codec/_columns.py",
    "schemas/helenus_schemas/codec/_key_bytes.py",
    "connector/helenus_connector/state/store/packing.py",
    "connector/helenus_connector/state/store/linear_hashing.py",
    "connector/helenus_connector/state/store/pages.py",
    "connector/helenus_connector/state/rows/_row_bytes.py",
    "connector/helenus_connector/state/rows/_row_update.py",
    "connector/helenus_connector/state/rows/_replica_reports.py",
    "connector/helenus_connector/state/rows/_ordinary_merge.py",
    "connector/helenus_connector/state/rows/_change_pack.py",
    "connector/helenus_connector/resolve/merge.py",
)
"""Each with its .pxd beside it, in the package of its path after the first directory. One that uses the C types of
another comes after it.
"""


class CustomBuildHook(BuildHookInterface[Any]):
    """Hatchling's hook, called for wheels and editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and have the extension packed: it ties the wheel to this Python and platform."""
        if self.target_name != "wheel":
            return
        if version == "editable":
            compile_all(lambda source: source.parent, self.app.display_info)
            return
        self._work = tempfile.mkdtemp()
        for source, built in compile_all(lambda _: Path(self._work), self.app.display_info).items():
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["force_include"][str(built)] = f"{package_of(source)}/{built.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Clean up."""
        if hasattr(self, "_work"):
            shutil.rmtree(self._work, ignore_errors=True)


def package_of(source: Path) -> str:
    """The package of a module, as a path: the directories with an `__init__.py`."""
    top = source.parent
    while (top.parent / "__init__.py").exists():
        top = top.parent
    return source.parent.relative_to(top.parent).as_posix()


def compile_all(directory: Callable[[Path], Path], say: Callable[[str], Any] = print) -> dict[Path, Path]:
    """Compile all modules, each into the `directory` of its source; their extensions. After one that stays plain Python
    all do, as others may use its C types.
    """
    built: dict[Path, Path] = {}
    for number, source in enumerate(HERE / module for module in MODULES):
        if len(built) < number:
            extension_of(source, directory(source)).unlink(missing_ok=True)
        elif (extension := compile_module(source, directory(source), say)) is not None:
            built[source] = extension
    return built


def extension_of(source: Path, directory: Path) -> Path:
    """Where the extension of a module goes."""
    return directory / f"{source.stem}{sysconfig.get_config_var('EXT_SUFFIX')}"


def compile_module(source: Path, directory: Path, say: Callable[[str], Any] = print) -> Path | None:
    """Compile a .py, with its .pxd, into a directory; the extension's path, None if it stays plain Python."""
    package, module = package_of(source), source.stem
    target = extension_of(source, directory)
    target.unlink(missing_ok=True)
    if os.environ.get("HELENUS_PURE", "") not in ("", "0"):
        say(f"helenus: {source.name} stays plain Python, as HELENUS_PURE says")
        return None
    try:
        from Cython.Build import cythonize
        from setuptools import Extension
        from setuptools.dist import Distribution

        with tempfile.TemporaryDirectory() as work:
            # Cython takes the module's name from its packages, so it sees the source in one, and all C types in theirs.
            tree = Path(work, "source")
            for types in (Path(HERE, each).with_suffix(".pxd") for each in MODULES):
                copy = tree / package_of(types)
                copy.mkdir(parents=True, exist_ok=True)
                for inner in (copy.parent, copy):
                    (inner / "__init__.py").touch()
                shutil.copy(types, copy / types.name)
            shutil.copy(source, tree / package / source.name)
            extension = Extension(
                f"{package.replace('/', '.')}.{module}",
                [str(tree / package / source.name)],
                extra_compile_args=["-g0", "-w"],
            )
            modules = cythonize(  # type: ignore[no-untyped-call]
                [extension],
                build_dir=str(Path(work, "c")),
                include_path=[str(tree)],
                quiet=True,
                language_level=3,
                # The source's annotations are Python's: `int` has no limits there.
                compiler_directives={"annotation_typing": False},
            )
            command = Distribution({"name": "helenus", "ext_modules": modules}).get_command_obj("build_ext")
            command.build_lib = str(Path(work, "lib"))
            command.build_temp = str(Path(work, "temp"))
            command.ensure_finalized()
            command.run()
            (built,) = Path(work, "lib", package).glob(f"{module}*")
            # Beside the target and then renamed: a running agent may have the old one mapped.
            part = target.with_name(f".{target.name}")
            shutil.copy(built, part)
            part.replace(target)
    except (Exception, SystemExit) as error:  # whatever keeps a compiler from working
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if "No such file or directory" in reason:
            reason = "there is no C compiler; it does the same, more slowly"
        elif not Path(sysconfig.get_path("include"), "Python.h").exists():
            reason = "there are no C headers of Python's (Debian's python3-dev); it does the same, more slowly"
        say(f"helenus: {source.name} stays plain Python: {reason}")
        return None
    say(f"helenus: compiled {target.name}")
    return target


if __name__ == "__main__":
    sys.exit(0 if len(compile_all(lambda source: source.parent)) == len(MODULES) else 1)
