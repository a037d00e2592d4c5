"""Run the code of a notebook and keep what it prints: `python -m docs.tools.notebooks
examples/quick_start.ipynb`.

It runs in the working directory, without Jupyter. Paths of this machine are left out of the
outputs.
"""

import argparse
import ast
import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

_SHELL = """\
import subprocess as _subprocess
def _shell(command):
    done = _subprocess.run(command, shell=True, check=True, text=True, stdout=-1, stderr=-2)
    print(done.stdout, end="")
"""
_COMMAND = re.compile(r"^( *)!((?:.*\\\n)*.*)$", re.MULTILINE)


def main() -> None:
    """Write the outputs into each notebook that is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("notebook", type=Path, nargs="+")
    for path in parser.parse_args().notebook:
        content = json.loads(path.read_text(encoding="utf-8"))
        namespace: dict[str, Any] = {}
        exec(_SHELL, namespace)
        for number, cell in enumerate(_code_cells(content), start=1):
            cell["execution_count"], cell["outputs"] = (
                number,
                _outputs("".join(cell["source"]), namespace, number),
            )
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def script(path: Path) -> str:
    """Give the code of a notebook as a program."""
    cells = _code_cells(json.loads(path.read_text(encoding="utf-8")))
    return _SHELL + "\n".join(_plain("".join(cell["source"])) for cell in cells)


def _code_cells(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in content["cells"] if cell["cell_type"] == "code"]


def _plain(source: str) -> str:
    """Replace the commands of a shell, which begin with an exclamation mark, by Python."""
    return _COMMAND.sub(lambda found: f"{found[1]}_shell({found[2]!r})", source)


def _outputs(source: str, namespace: dict[str, Any], number: int) -> list[dict[str, Any]]:
    tree, shown = ast.parse(_plain(source)), None
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(StringIO()) as printed:
        exec(compile(tree, "<cell>", "exec"), namespace)
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)
    made: list[dict[str, Any]] = []
    if printed.getvalue():
        made.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if shown is not None:
        data = {"text/plain": _lines(repr(shown))}
        if hasattr(shown, "_repr_html_"):
            data["text/html"] = _lines(shown._repr_html_())
        made.append(
            {
                "data": data,
                "execution_count": number,
                "metadata": {},
                "output_type": "execute_result",
            }
        )
    return made


def _lines(text: str) -> list[str]:
    here = str(Path.cwd())
    return text.replace(here, ".").splitlines(keepends=True)


if __name__ == "__main__":
    main()
