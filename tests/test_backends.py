# SPDX-License-Identifier: MIT
# Choosing a backend: names, forcing, contexts, environment; and proof that it really ran.
# Used by the suite; most tests here go over all backends themselves.
# Whether the results are right is the matter of all other files.
"""A forced backend is the one that computes, and nothing falls back silently."""

import threading

import numpy as np
import pytest
from check import assert_close, qkv

import fastattn

sdpa = fastattn.scaled_dot_product_attention
NAMES = fastattn.backends()
COMPILED = [name for name in NAMES if name != "numpy"]


def test_names():
    """Best first, NumPy last, no name twice."""
    assert NAMES[-1] == "numpy" and len(set(NAMES)) == len(NAMES)
    assert all(isinstance(name, str) for name in NAMES)
    assert fastattn.get_backend() in NAMES
    changed = fastattn.backends()
    changed.clear()
    assert fastattn.backends() == NAMES


def test_fixture_forces_the_backend(backend):
    assert fastattn.get_backend() == backend


def test_forced_backend_really_runs(backend, rng, monkeypatch):
    """Case 163: spies at both doors see who computed a float32 call."""
    ran = []
    from fastattn import _reference

    real = _reference.sdpa
    monkeypatch.setattr(_reference, "sdpa", lambda call: (ran.append("numpy"), real(call))[1])
    if COMPILED:
        import fastattn._backend as chooser
        from fastattn import _native

        class Spy:
            def __getattr__(self, name):
                return getattr(_native, name)

            def sdpa(self, call, name, n_threads):
                ran.append(name)
                return _native.sdpa(call, name, n_threads)

            def sdpa_plain(self, *arguments):
                ran.append(arguments[-2])
                return _native.sdpa_plain(*arguments)

        spy = Spy()
        monkeypatch.setattr(fastattn, "_native", spy)
        for module in (chooser, fastattn.functional):
            for name, value in list(vars(module).items()):
                if value is _native:
                    monkeypatch.setattr(module, name, spy)
                elif value is _native.sdpa:
                    monkeypatch.setattr(module, name, spy.sdpa)
                elif value is real:
                    monkeypatch.setattr(module, name, _reference.sdpa)
    sdpa(*qkv(rng))
    assert ran == [backend]


@pytest.mark.skipif(len(COMPILED) < 2, reason="needs two compiled backends")
def test_compiled_backends_round_differently(rng):
    """Different vector widths sum in different orders, which shows in the last bits."""
    results = []
    given = qkv(rng, queries=64, keys=300, dim=64, dv=64)
    for name in COMPILED:
        with fastattn.use_backend(name):
            results.append(sdpa(*given))
    assert len({x.tobytes() for x in results}) == len(results)


def test_all_backends_agree(rng, dtype):
    """Cases 154, 163: same results within tolerance everywhere."""
    given = qkv(rng, dtype, heads=4, kv_heads=2, queries=9, keys=40)
    options = {"is_causal": True, "q_offset": "lower_right", "softcap": 3.0}
    with fastattn.use_backend("numpy"):
        wanted = sdpa(*given, **options).astype(np.float64)
    for name in NAMES:
        with fastattn.use_backend(name):
            assert_close(sdpa(*given, **options), wanted, context=name)


@pytest.mark.parametrize("wrong", ["nothing", "", "AVX2 ", "cuda", "num py"])
def test_unknown_names(wrong):
    """The message lists what there is; the choice stays as it was."""
    before = fastattn.get_backend()
    with pytest.raises(ValueError) as caught:
        fastattn.use_backend(wrong)
    assert "numpy" in str(caught.value)
    assert fastattn.get_backend() == before


@pytest.mark.parametrize("wrong", [3, b"numpy", ["numpy"]])
def test_names_of_another_type(wrong):
    with pytest.raises((TypeError, ValueError)):
        fastattn.use_backend(wrong)


def test_context_manager_nests_and_restores():
    before = fastattn.get_backend()
    with fastattn.use_backend(NAMES[0]):
        assert fastattn.get_backend() == NAMES[0]
        with fastattn.use_backend("numpy"):
            assert fastattn.get_backend() == "numpy"
        assert fastattn.get_backend() == NAMES[0]
        with pytest.raises(KeyError), fastattn.use_backend("numpy"):
            raise KeyError
        assert fastattn.get_backend() == NAMES[0]
    assert fastattn.get_backend() == before


def test_context_does_not_reach_other_threads():
    """The context manager is for the calling context, not for the process."""
    before, seen = fastattn.get_backend(), []
    for name in NAMES:
        with fastattn.use_backend(name):
            thread = threading.Thread(target=lambda: seen.append(fastattn.get_backend()))
            thread.start()
            thread.join()
    assert set(seen) == {before}


SET_DEFAULT = """
import threading
import fastattn
fastattn.use_backend("numpy")
assert fastattn.get_backend() == "numpy"
seen = []
thread = threading.Thread(target=lambda: seen.append(fastattn.get_backend()))
thread.start(); thread.join()
assert seen == ["numpy"]
with fastattn.use_backend(fastattn.backends()[0]):
    assert fastattn.get_backend() == fastattn.backends()[0]
assert fastattn.get_backend() == "numpy"
print("done")
"""


def test_function_sets_the_process_default(run_python):
    done = run_python(SET_DEFAULT)
    assert (done.stdout.strip(), done.returncode) == ("done", 0), done
    if len(fastattn.backends()) > 1:  # without the extension, its one warning
        assert done.stderr == ""


CALL = """
import fastattn, numpy as np
one = np.ones((2, 3, 4), "f4")
assert (abs(fastattn.scaled_dot_product_attention(one, one, one) - 1) < 1e-6).all()
print(fastattn.get_backend(), *fastattn.backends())
"""


@pytest.mark.parametrize("name", NAMES)
def test_environment_forces_a_backend(run_python, name):
    done = run_python(CALL, FASTATTN_BACKEND=name)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.split()[0] == name, done


@pytest.mark.parametrize("name", ["nothing", "avx9"])
def test_environment_with_an_unknown_name_fails(run_python, name):
    done = run_python(CALL, FASTATTN_BACKEND=name)
    assert done.returncode != 0 and name in done.stderr and not done.stdout, done


def test_environment_native(run_python):
    """ "native" is any compiled backend."""
    done = run_python(CALL, FASTATTN_BACKEND="native")
    if COMPILED:
        assert done.returncode == 0 and done.stdout.split()[0] == COMPILED[0], done
    else:
        assert done.returncode != 0, done


WITHOUT = "import sys; sys.modules['fastattn._native'] = None\n"


def test_without_the_extension(run_python):
    """Case 163: NumPy serves, with one warning, and all calls work."""
    done = run_python(WITHOUT + CALL, options=("-W", "always"))
    assert done.returncode == 0 and done.stdout.split() == ["numpy", "numpy"], done
    assert done.stderr.count("Warning") == 1, done.stderr
    done = run_python(WITHOUT + CALL, options=("-W", "error"), FASTATTN_BACKEND="numpy")
    assert done.returncode == 0 and done.stdout.split() == ["numpy", "numpy"], done


@pytest.mark.parametrize("name", ["native", *COMPILED])
def test_without_the_extension_nothing_falls_back(run_python, name):
    done = run_python(WITHOUT + CALL, FASTATTN_BACKEND=name)
    assert done.returncode != 0 and not done.stdout, done


def test_config_names_the_backend():
    """show_config prints or returns what was chosen."""
    import contextlib
    import io

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        returned = fastattn.show_config()
    text = printed.getvalue() + ("" if returned is None else str(returned))
    assert all(name in text for name in NAMES) and fastattn.__version__ in text
