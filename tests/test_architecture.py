# SPDX-License-Identifier: MIT
# The layers of the C code: who may include whom, and who may touch the machine.
# Used by the suite wherever the sources are at hand (not beside an installed wheel alone).
# It reads files; it compiles and runs nothing.
"""base <- vec <- kernels <- isa, and base, kernels.h <- ops <- fastattn.h: no arrow reverses."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
if not CSRC.is_dir():
    pytest.skip("the C sources are not beside the tests", allow_module_level=True)

FILES = sorted(p for p in CSRC.rglob("*") if p.suffix in (".c", ".h"))
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>|(\w+))', re.MULTILINE)

# folder -> folders (or single files) whose headers it may include, besides its own.
MAY_INCLUDE = {
    "base": set(),
    "vec": {"base"},
    "kernels": {"base", "vec"},
    "isa": {"base", "vec", "kernels"},
    "ops": {"base", "kernels/kernels.h", "isa/isa_list.h", "fastattn.h"},
    "": {"base"},
}


def code_of(path):
    """The text without comments, so that prose may name what code may not."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.DOTALL)
    return re.sub(r"//[^\n]*", "", text)


def relative(path):
    return path.relative_to(CSRC).as_posix()


def folder(name):
    return name.split("/")[0] if "/" in name else ""


def own_includes(path):
    """The project headers that a file includes, as paths below csrc."""
    for quoted, _, _ in INCLUDE.findall(code_of(path)):
        if not quoted:
            continue
        for base in (path.parent, CSRC):
            target = (base / quoted).resolve()
            if target.is_file():
                yield relative(target)
                break
        else:
            raise AssertionError(f'{relative(path)}: "{quoted}" is not in the tree')


def test_the_tree_is_there():
    assert {folder(relative(p)) for p in FILES} == set(MAY_INCLUDE)
    assert (CSRC / "fastattn.h").is_file()


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_includes_follow_the_arrows(path):
    own = folder(relative(path))
    for name in own_includes(path):
        allowed = folder(name) == own or {folder(name), name} & MAY_INCLUDE[own]
        assert allowed, f"{relative(path)} must not include {name}"


def test_no_include_cycle():
    graph = {relative(p): set(own_includes(p)) for p in FILES}
    done = set()

    def visit(name, trail):
        assert name not in trail, " -> ".join([*trail, name])
        if name not in done:
            for other in graph.get(name, ()):
                visit(other, [*trail, name])
            done.add(name)

    for name in graph:
        visit(name, [])


def users(pattern):
    return {relative(p) for p in FILES if re.search(pattern, code_of(p))}


def test_only_the_scratch_allocates():
    assert users(r"\b(malloc|calloc|realloc|aligned_alloc|posix_memalign)\s*\(") <= {
        "base/scratch.c", "base/scratch.h"
    }  # fmt: skip


def test_only_the_base_knows_threads():
    found = users(r"\bpthread_\w+\s*\(|<pthread\.h>|CreateThread|<threads\.h>")
    assert found and all(folder(name) == "base" for name in found), found


def test_only_one_file_asks_the_cpu():
    assert users(r"\bcpuid|xgetbv|getauxval|<cpuid\.h>") <= {"base/cpu.c"}


def test_intrinsics_stay_in_vec_and_isa():
    """Algorithms are written in the vocabulary, not in one machine's intrinsics."""
    found = users(r"\b_mm\d*_\w+\s*\(|\bv\w+q_f(32|64)\s*\(|immintrin\.h|arm_neon\.h")
    assert not [f for f in found if folder(f) in ("kernels", "ops", "")], found


def test_no_python_and_no_environment_in_c():
    assert not users(r"\bPy[A-Z]\w+|Python\.h|\bgetenv\s*\(")


def test_only_a_failed_assertion_speaks_or_aborts():
    assert users(r"\b(f?printf|puts|abort|exit)\s*\(") <= {"base/base.h"}


def test_no_unsafe_arithmetic():
    """Case 126: NaN and infinity logic must survive the compiler."""
    texts = [p.read_text(encoding="utf-8") for p in (ROOT / "setup.py", ROOT / "pyproject.toml")]
    texts += [code_of(p) for p in FILES]
    for flag in ("-ffast-math", "-Ofast", "-funsafe-math", "-ffinite-math", "/fp:fast"):
        for text in texts:
            lines = [x.split("#")[0] if "#include" not in x else x for x in text.splitlines()]
            assert not any(flag in line for line in lines), flag


def test_the_border_sees_one_header():
    for name in ("_native.pyx", "_native.pxd"):
        text = (ROOT / "fastattn" / name).read_text(encoding="utf-8")
        headers = re.findall(r'cdef\s+extern\s+from\s+[<"]([^>"]+)', text)
        ours = [h for h in headers if (CSRC / h).exists() or "/" in h or h.startswith("fa")]
        assert all(h == "fastattn.h" for h in ours), headers


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_every_file_has_its_license_line(path):
    assert "SPDX-License-Identifier: MIT" in path.read_text(encoding="utf-8").splitlines()[0]
