"""The house rules that a machine can check: floors, names on sys.path, what an import costs."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import trunkline

ROOT = Path(trunkline.__file__).resolve().parent
FLOORS = {"errors": 0, "radix": 1, "attention": 1, "scheduler": 2, "runtime": 3, "frontend": 4}
ROOMS = [room for room in FLOORS if room != "errors"]
WITHOUT_TORCH = {"radix", "scheduler"}


def imported_modules(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).parent.parts
            base = package[: len(package) - node.level + 1]
            names.add(".".join(("trunkline", *base, *(node.module or "").split("."))).rstrip("."))
    return names


def faults(room: str, path: Path) -> list[str]:
    found = []
    for name in imported_modules(path):
        parts = name.split(".")
        if parts[0] in FLOORS and parts[0] != "errors":
            found.append(f"{path}: bare import of {name}")
        if parts[0] == "torch" and room in WITHOUT_TORCH:
            found.append(f"{path}: {room} imports torch")
        other = parts[1] if parts[0] == "trunkline" and len(parts) > 1 else room
        if other != room and FLOORS.get(other, 0) >= FLOORS[room]:
            found.append(f"{path}: {room} imports {name}, which is not below it")
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_imports_run_downwards_only(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    assert [fault for path in files for fault in faults(room, path)] == []


def test_an_upward_import_would_be_found(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import torch\nimport scheduler\nfrom trunkline.runtime import engine\n")
    assert len(faults("radix", bad)) == 3


def test_every_package_is_listed_for_the_wheel() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(("trunkline", *init.parent.relative_to(ROOT).parts))
        for room in ROOMS
        for init in (ROOT / room).rglob("__init__.py")
    }
    assert sorted(listed) == sorted({"trunkline", *found})


def test_room_names_are_no_top_level_modules_after_importing_everything() -> None:
    script = (
        "import sys, trunkline\n"
        "for name in trunkline.__all__: getattr(trunkline, name)\n"
        "import trunkline.frontend.cli\n"
        f"print([m for m in {ROOMS!r} if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd="/", check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "module", ["trunkline", "trunkline.radix", "trunkline.scheduler", "trunkline.frontend.cli"]
)
def test_import_brings_in_no_torch(module: str) -> None:
    script = f"import sys, {module}; print('torch' in sys.modules, 'transformers' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd="/", check=True)
    assert run.stdout.strip() == "False False"


def test_the_face_names_only_what_exists_and_says_what_does_not() -> None:
    assert all(getattr(trunkline, name) is not None for name in trunkline.__all__)
    assert set(trunkline.__all__) <= set(dir(trunkline))
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        _ = trunkline.Motor
