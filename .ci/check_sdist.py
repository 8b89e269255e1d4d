# SPDX-License-Identifier: MIT
# What a source distribution must hold, compared with the tree it was made from.
# Used by `.ci/run wheel`.
# It builds nothing; the step goes on to build and test from the unpacked files.
"""python .ci/check_sdist.py TREE UNPACKED. Prints every difference; exits 1 when there is one."""

import sys
from pathlib import Path

# Of these folders everything; of the top level these files.
FOLDERS = ("bench", "csrc", "docs", "examples", "fastattn", "tests")
TOP = (".clang-format", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py")
GENERATED = ("PKG-INFO", "setup.cfg")

# The comparison alone would accept a tree that itself lacks something.
ALWAYS = (
    "csrc/base/base.h",
    "csrc/base/pool.c",
    "csrc/fastattn.h",
    "csrc/isa/avx2.c",
    "csrc/isa/scalar.c",
    "csrc/ops/sdpa.c",
    "csrc/vec/scalar.h",
    "fastattn/__init__.py",
    "fastattn/_native.pxd",
    "fastattn/_native.pyi",
    "fastattn/_native.pyx",
    "fastattn/py.typed",
    "tests/conftest.py",
    *TOP,
)


def listing(root):
    names = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    return {n for n in names if ".egg-info/" not in n and "__pycache__/" not in n}


def main():
    tree, unpacked = map(Path, sys.argv[1:])
    wanted = {n for n in listing(tree) if n.split("/")[0] in FOLDERS} | set(ALWAYS)
    found = listing(unpacked) - set(GENERATED)
    for name in sorted(wanted - found):
        print("missing from the sdist:", name)
    for name in sorted(found - wanted):
        print("unexpected in the sdist:", name)
    print(f"sdist: {len(found)} files")
    sys.exit(wanted != found)


if __name__ == "__main__":
    main()
