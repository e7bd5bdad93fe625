"""Count lines of logic: everything but blank lines, comments, docstrings, and imports.

python tools/size.py [PATH ...]     ddptop_runner and ddptop by default
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = (ROOT / "runner" / "ddptop_runner", ROOT / "ddptop")
NO_LOGIC = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


def lines_of_logic(source: str) -> int:
    """Return the number of lines with a token outside comments, docstrings, and imports."""
    used: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_LOGIC:
            used.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, (ast.Import, ast.ImportFrom)) or (
            is_text and isinstance(node.value.value, str)
        ):
            used.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(used)


def main() -> None:
    """Print a row per package: lines of logic, files, and the median lines per file."""
    for top in [Path(path) for path in sys.argv[1:]] or DEFAULT:
        packages: dict[str, list[int]] = {}
        for file in sorted(top.rglob("*.py")):
            package = file.relative_to(top).parts[0]
            packages.setdefault(package if not package.endswith(".py") else ".", []).append(
                lines_of_logic(file.read_text(encoding="utf-8"))
            )
        print(f"{'lines':>7} {'files':>6} {'median':>7}  {top.name}")
        for package, counts in packages.items():
            print(f"{sum(counts):7} {len(counts):6} {statistics.median(counts):7.0f}  {package}")
        total = [count for counts in packages.values() for count in counts]
        print(f"{sum(total):7} {len(total):6} {statistics.median(total):7.0f}  total")


if __name__ == "__main__":
    main()
