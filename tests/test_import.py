# SPDX-License-Identifier: MIT
# What importing the package does and does not do, with and without its compiled part.
# Used by pytest; most of it runs in a fresh interpreter.
# Which backend is chosen is the matter of test_backends.py, results are that of other files.
"""Import is light, quiet, starts no thread, touches no one else's settings and never crashes."""

import importlib.util
import sys
import textwrap

import pytest

HAS_NATIVE = importlib.util.find_spec("fastattn._native") is not None
needs_native = pytest.mark.skipif(not HAS_NATIVE, reason="the compiled extension is not installed")

# Without the extension the import warns, once and on purpose; here that is not the question.
STRICT = ("-W", "error", "-W", "ignore:fastattn:RuntimeWarning")

CALL = """
import numpy as np
x = np.ones((1, 2, 3, 4), np.float32)
assert fastattn.scaled_dot_product_attention(x, x, x).shape == x.shape
"""
INDENTED_CALL = textwrap.indent(CALL, "    ")

# Hides the extension, or breaks it in a way that a damaged installation would.
WITHOUT_NATIVE = """
import sys
sys.modules["fastattn._native"] = None
"""
WITH_BROKEN_NATIVE = """
import importlib.abc, importlib.machinery, sys
class Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name == "fastattn._native":
            return importlib.machinery.ModuleSpec(name, self)
    def exec_module(self, module):
        raise ImportError("_native.so: undefined symbol: fa_none")
sys.meta_path.insert(0, Broken())
"""


def output(done):
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts /proc/self/task")
@pytest.mark.parametrize("openmp", [None, "1", "", "abc", "0", "4,2", "-3", "9" * 40])
def test_import_starts_no_thread_whatever_the_environment_says(run_python, openmp):
    done = run_python(
        """
import os, numpy
before = len(os.listdir("/proc/self/task"))
import fastattn
print(len(os.listdir("/proc/self/task")) - before)
""",
        options=STRICT,
        OMP_NUM_THREADS=openmp,
    )
    assert output(done) == ["0"]


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "FASTATTN_NUM_THREADS"])
@pytest.mark.parametrize(
    ("value", "n_warnings"), [("", 0), ("1", 0), ("abc", 1), ("0", 1), ("-3", 1), ("1e9", 1)]
)
def test_a_bad_thread_count_is_ignored_with_one_warning(run_python, name, value, n_warnings):
    done = run_python(
        f"""
import warnings
import numpy
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import fastattn
{INDENTED_CALL}
    assert fastattn.get_num_threads() >= 1
    assert fastattn.get_num_threads() >= 1
print(sum("{name}" in str(w.message) for w in caught))
""",
        **{name: value},
    )
    assert output(done) == [str(n_warnings)]


def test_import_does_little(run_python):
    # Time is no measure here: others use the machine, threads of NumPy's BLAS spin after its
    # import, and bytecode may have to be compiled. The calls made are the same every time.
    # 10,000 of them take some 15 ms on a machine of 2026 (30 ms are the target); numpy's own import
    # makes 100,000.
    done = run_python(
        """
import sys
import numpy
calls = 0
def count(frame, event, argument):
    global calls
    calls += event in ("call", "c_call")
sys.setprofile(count)
import fastattn
sys.setprofile(None)
print(calls)
""",
        options=STRICT,
    )
    assert int(output(done)[0]) < 12_000


def test_import_loads_nothing_heavy(run_python):
    done = run_python(
        """
import sys
import numpy
before = set(sys.modules)
import fastattn
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
""",
        options=STRICT,
    )
    loaded = set(output(done))
    heavy = {
        "argparse", "asyncio", "concurrent", "ctypes", "decimal", "email", "http", "logging",
        "matplotlib", "multiprocessing", "pytest", "socket", "subprocess", "torch", "unittest",
    }  # fmt: skip
    assert "fastattn" in loaded
    assert not loaded & heavy


def test_layers_are_imported_when_they_are_first_used(run_python):
    done = run_python(
        """
import sys
import fastattn
assert "fastattn.layers" not in sys.modules
assert fastattn.layers.BahdanauAttention
assert fastattn.layers is sys.modules["fastattn.layers"]
assert "torch" not in sys.modules
try:
    fastattn.layer
except AttributeError as error:
    assert "'layer'" in str(error)
    print("done")
""",
        options=STRICT,
    )
    assert output(done) == ["done"]


@needs_native
def test_import_and_use_with_every_warning_an_error(run_python):
    # Among others: "numpy.dtype size changed", when built against another NumPy.
    done = run_python(f"import fastattn\n{CALL}", options=("-W", "error"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("prelude", [WITHOUT_NATIVE, WITH_BROKEN_NATIVE], ids=["absent", "broken"])
def test_without_the_extension_one_warning_and_the_same_names(run_python, prelude):
    done = run_python(
        f"""{prelude}
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import fastattn
    import importlib
    importlib.import_module("fastattn")
{INDENTED_CALL}
{INDENTED_CALL}
assert fastattn.backends() == ["numpy"]
assert all(hasattr(fastattn, name) for name in fastattn.__all__)
print(*(w.category.__name__ for w in caught))
"""
    )
    assert output(done) == ["RuntimeWarning"]


@pytest.mark.parametrize("prelude", [WITHOUT_NATIVE, WITH_BROKEN_NATIVE], ids=["absent", "broken"])
def test_asking_for_native_without_the_extension_is_an_error(run_python, prelude):
    done = run_python(f"{prelude}\nimport fastattn", FASTATTN_BACKEND="native")
    assert done.returncode == 1
    assert "ImportError: FASTATTN_BACKEND" in done.stderr
    assert "'native'" in done.stderr


def test_calls_leave_other_thread_pools_and_the_environment_alone(run_python):
    pytest.importorskip("threadpoolctl")
    done = run_python(
        """
import ctypes, os
import numpy as np
from threadpoolctl import threadpool_info
try:
    openmp = ctypes.CDLL("libgomp.so.1")
except OSError:
    openmp = None

def state():
    pools = {p["filepath"]: (p["user_api"], p["num_threads"]) for p in threadpool_info()}
    return pools, openmp and openmp.omp_get_max_threads(), dict(os.environ)

before = state()
import fastattn
for n_threads in (1, 2):
    with fastattn.threads(n_threads):
        x = np.ones((2, 3, 300, 16), np.float32)
        fastattn.scaled_dot_product_attention(x, x, x)
    fastattn.set_num_threads(n_threads)
    fastattn.scaled_dot_product_attention(x, x, x)
pools, max_threads, environment = state()
assert (max_threads, environment) == before[1:]
for path, entry in before[0].items():
    assert pools[path] == entry, (path, entry, pools[path])
new = [entry for path, entry in pools.items() if path not in before[0] and "fastattn" not in path]
assert not new, new
print("done")
""",
        options=STRICT,
    )
    assert output(done) == ["done"]


def test_subinterpreters_work_or_fail_cleanly(run_python):
    # NumPy may refuse to load there, which is fine; the main interpreter must not suffer.
    done = run_python(
        f"""
import sys
try:
    import _interpreters as interpreters
except ImportError:
    try:
        import _xxsubinterpreters as interpreters
    except ImportError:
        print("unknown")
        sys.exit()
import fastattn
{CALL}
code = '''
import os
try:
    import numpy
    try:
        numpy.ones(3).max()
    except TypeError:  # NumPy 2.2 loads in a second interpreter but cannot reduce there
        raise ImportError("NumPy does not work here") from None
    import fastattn
{INDENTED_CALL}
    answer = b"works "
except ImportError:
    answer = b"ImportError "
os.write(1, answer)
'''
for _ in range(2):
    interpreter = interpreters.create()
    interpreters.run_string(interpreter, code)
    interpreters.destroy(interpreter)
{CALL}
sys.stdout.write("main")
""",
    )
    words = output(done)
    if words == ["unknown"]:
        pytest.skip("this Python has no subinterpreters to try")
    assert len(words) == 3
    assert words[-1] == "main"
    assert set(words[:-1]) <= {"works", "ImportError"}


@pytest.mark.skipif(not hasattr(sys, "_is_gil_enabled"), reason="asks about free threading")
def test_import_does_not_turn_the_gil_on(run_python):
    done = run_python(
        """
import sys
import numpy
before = sys._is_gil_enabled()
import fastattn
print(sys._is_gil_enabled() == before)
""",
        options=STRICT,
    )
    assert output(done) == ["True"]
