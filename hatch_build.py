"""Compiles the agent's decoder, where there is a C compiler; without one the package is plain Python.

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

PACKAGE = "helenus_agent/commitlog"
MODULE = "decoder"


class CustomBuildHook(BuildHookInterface[Any]):
    """Hatchling's hook, called for wheels and editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and have the extension packed: it ties the wheel to this Python and platform."""
        if self.target_name != "wheel":
            return
        source = Path(self.root, "agent", PACKAGE)
        if version == "editable":
            compile_decoder(source, source, self.app.display_info)
            return
        self._work = tempfile.mkdtemp()
        built = compile_decoder(source, Path(self._work), self.app.display_info)
        if built is not None:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["force_include"][str(built)] = f"{PACKAGE}/{built.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Clean up."""
        if hasattr(self, "_work"):
            shutil.rmtree(self._work, ignore_errors=True)


def compile_decoder(package: Path, directory: Path, say: Callable[[str], Any] = print) -> Path | None:
    """Compile `package`/decoder.py into a directory; the extension's path, None if it stays plain Python."""
    target = directory / f"{MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}"
    target.unlink(missing_ok=True)
    if os.environ.get("HELENUS_PURE", "") not in ("", "0"):
        say("helenus: the decoder stays plain Python, as HELENUS_PURE says")
        return None
    try:
        from Cython.Build import cythonize
        from setuptools import Extension
        from setuptools.dist import Distribution

        with tempfile.TemporaryDirectory() as work:
            # Cython takes the module's name from its packages, so it sees the source in one.
            source = Path(work, "source", PACKAGE)
            source.mkdir(parents=True)
            for inner in (source.parent, source):
                (inner / "__init__.py").touch()
            for name in (f"{MODULE}.py", f"{MODULE}.pxd"):
                shutil.copy(package / name, source / name)
            extension = Extension(
                f"{PACKAGE.replace('/', '.')}.{MODULE}",
                [str(source / f"{MODULE}.py")],
                extra_compile_args=["-g0", "-w"],
            )
            modules = cythonize(  # type: ignore[no-untyped-call]
                [extension],
                build_dir=str(Path(work, "c")),
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
            (built,) = Path(work, "lib", PACKAGE).glob(f"{MODULE}*")
            # Beside the target and then renamed: a running agent may have the old one mapped.
            part = target.with_name(f".{target.name}")
            shutil.copy(built, part)
            part.replace(target)
    except (Exception, SystemExit) as error:  # whatever keeps a compiler from working
        reason = (str(error) or type(error).__name__).splitlines()[0]
        say(f"helenus: the decoder stays plain Python: {reason}")
        return None
    say(f"helenus: compiled {target.name}")
    return target


if __name__ == "__main__":
    agent = Path(__file__).parent / "agent" / PACKAGE
    sys.exit(0 if compile_decoder(agent, agent) else 1)
