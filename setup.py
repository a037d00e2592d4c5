"""Puts the files of a new project into the wheel, for `primorl init`.

All other settings stand in pyproject.toml.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))

from primorl.base.template import FILES, FOLDER  # noqa: E402 - the build has none of primorl's dependencies


def template() -> Iterator[str]:
    """Paths of the files, from the repository's root."""
    for pattern in FILES:
        found = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern))
        if not found:
            raise FileNotFoundError(f"{pattern}: no such file; primorl/base/template.py lists it")
        yield from found


class BuildWithTemplate(build_py):
    """Copies the repository's own files beside the modules, so that they have one place in the
    sources.
    """

    def run(self) -> None:
        """Build the modules, then copy."""
        super().run()
        for source, target in self._copies().items():
            self.mkpath(str(Path(target).parent))
            self.copy_file(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """What the build writes."""
        return [*super().get_outputs(include_bytecode), *self._copies().values()]

    def get_source_files(self) -> list[str]:
        """What a source distribution needs."""
        return [*super().get_source_files(), *template()]

    def _copies(self) -> dict[str, str]:
        if self.editable_mode:  # then the repository itself is read
            return {}
        return {name: str(Path(self.build_lib, "primorl", FOLDER, name)) for name in template()}


setup(cmdclass={"build_py": BuildWithTemplate})
