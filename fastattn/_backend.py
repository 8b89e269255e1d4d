# SPDX-License-Identifier: MIT
"""Who computes: the backends in order, the current one, and how it was chosen.

For ``functional``, which hands its checked calls to it, and for users who want to choose or look.
It computes nothing itself and knows nothing of CPUs: that is the compiled module's business.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import numpy as np

from . import _reference, _reference_additive, _threads
from ._validate import SdpaCall
from ._validate_additive import AdditiveCall
from ._validate_varlen import VarlenCall


def _load_native() -> tuple[ModuleType | None, str]:
    """The compiled module, or None and why it cannot be had."""
    full_name = f"{__package__}._native"
    try:
        native = importlib.import_module(full_name)
    except ModuleNotFoundError as error:
        if error.name == full_name:
            return None, "the compiled extension is not installed"
        return None, f"the compiled extension cannot be loaded ({error})"
    except Exception as error:  # built for another Python, a missing symbol, ...
        return None, f"the compiled extension cannot be loaded ({type(error).__name__}: {error})"
    if not native.backend_names():
        return None, "the compiled extension has no backend that this CPU runs"
    return native, ""


_native, _why_no_native = _load_native()
_usable: tuple[str, ...] = (*(_native.backend_names() if _native is not None else ()), "numpy")


class _Setting:
    """A choice of the process's default, and the object that can still take it back, if alive."""

    __slots__ = ("is_withdrawn", "name", "scope", "why")

    def __init__(self, name: str, why: str, scope: Callable[[], object]) -> None:
        self.name = name
        self.why = why
        self.scope = scope
        self.is_withdrawn = False

    def is_final(self) -> bool:
        """Nobody has taken it back and nobody can any more."""
        return self.scope() is None and not self.is_withdrawn  # in this order: see __enter__


def _first_setting(environ: os._Environ[str] | dict[str, str]) -> _Setting:
    """What holds until somebody chooses: ``FASTATTN_BACKEND``, else the best one."""
    wanted = environ.get("FASTATTN_BACKEND", "").strip().lower()
    if wanted:
        try:
            name = _resolve(wanted, "FASTATTN_BACKEND")
        except ValueError as error:
            raise ImportError(str(error)) from None
        return _Setting(name, f"FASTATTN_BACKEND={wanted}", lambda: None)
    if _native is None:
        warnings.warn(
            f"fastattn: {_why_no_native}; computing with NumPy, which takes longer. "
            "FASTATTN_BACKEND=numpy silences this, FASTATTN_BACKEND=native makes it an error.",
            RuntimeWarning,
            stacklevel=4,  # the user's import: past _backend's module level and __init__
        )
        return _Setting("numpy", _why_no_native, lambda: None)
    return _Setting(_usable[0], "the best one that runs on this CPU", lambda: None)


def _resolve(name: str, source: str) -> str:
    """The backend that `name` means, if it can be used here; `source` is where it was said."""
    if not isinstance(name, str):
        raise TypeError(f"{source}: expected the name of a backend, got {type(name).__name__}")
    if name in _usable:
        return str(name)
    if name == "native" and _native is not None:
        return _usable[0]
    expected = f"{source}: expected one of {', '.join(_usable)}, got {name!r}"
    if _native is None:
        raise ValueError(f"{expected}: {_why_no_native}")
    for known, needs, _supported in _native.backend_table():
        if known == name:
            raise ValueError(f"{expected}: this CPU or its system does not offer {needs}")
    raise ValueError(expected)


# The last one holds. It is touched by single list operations only, which are atomic, and the last
# final one stays in it, so that it is never empty.
_settings: list[_Setting] = [_first_setting(os.environ)]

# what the with blocks of this context say: (name, what held outside of it)
_context: ContextVar[tuple[str, Any] | None] = ContextVar("fastattn_backend", default=None)


def backends() -> list[str]:
    """Names of the backends that can be used on this machine, the best first.

    Returns
    -------
    list of str
        The compiled ones that this CPU and its system support, then ``"numpy"``, which is always
        there.

    Examples
    --------
    >>> import fastattn
    >>> fastattn.backends()[-1]
    'numpy'
    """
    return list(_usable)


def get_backend() -> str:
    """Name of the backend that a call made here would use.

    Returns
    -------
    str
        The name given to the innermost active `use_backend` block of this context, else the
        process's default.
    """
    here = _context.get()
    return here[0] if here is not None else _settings[-1].name


class use_backend:
    """Choose who computes: for the process, or within a ``with`` block for the calling context.

    ``use_backend(name)`` on its own sets the default of the process. In ``with
    use_backend(name):`` it holds in the block only, and only for the calling thread or
    asynchronous task; the default becomes again what it was before the call. There is no falling
    back: a backend that cannot be used is an error.

    Parameters
    ----------
    name : str
        One of `backends`, or ``"native"`` for the best compiled one.

    Raises
    ------
    TypeError
        `name` is not a string.
    ValueError
        No such backend can be used here.

    Notes
    -----
    Python gives the object to ``with`` only after it has been made, so the default of the process
    is changed for the moment between the two. Results of a thread that makes a call in exactly
    that moment are right, but may come from the other backend.

    Examples
    --------
    >>> import fastattn
    >>> with fastattn.use_backend("numpy"):
    ...     fastattn.get_backend()
    'numpy'
    """

    def __init__(self, name: str) -> None:
        self._name = _resolve(name, "name")
        self._setting = _Setting(self._name, "use_backend", weakref.ref(self))
        _settings.append(self._setting)
        # of the final settings only the last can ever hold again
        for setting in [s for s in list(_settings) if s.is_final()][:-1]:
            _forget(setting)

    def __enter__(self) -> None:
        self._setting.is_withdrawn = True  # while this object lives: no other thread finds it final
        _forget(self._setting)
        _context.set((self._name, _context.get()))

    def __exit__(self, *_exc: object) -> None:
        here = _context.get()
        _context.set(here[1] if here is not None else None)

    def __repr__(self) -> str:
        return f"use_backend({self._name!r})"


def _forget(setting: _Setting) -> None:
    try:
        _settings.remove(setting)
    except ValueError:  # already done, by an earlier block or another thread
        pass


def compute(call: SdpaCall) -> None:
    """Compute a checked call of any kind of score on the current backend."""
    if isinstance(call, AdditiveCall):
        additive(call)
    else:
        sdpa(call)


def sdpa(call: SdpaCall) -> None:
    """Compute a checked call of dot-product scores on the current backend."""
    name = get_backend()
    if _native is not None and name != "numpy":
        _native.sdpa(call, name, _threads.get_num_threads())
    else:
        _reference.sdpa(call)


def additive(call: AdditiveCall) -> None:
    """Compute a checked call of additive attention on the current backend."""
    name = get_backend()
    if _native is not None and name != "numpy":
        keys = call.prepared
        packed = None if keys is None else keys._packed_for(name, _native.pack_additive_keys)
        _native.additive(call, packed, name, _threads.get_num_threads())
    else:
        _reference_additive.additive(call)


def varlen(call: VarlenCall) -> None:
    """Compute a checked call of packed sequences on the current backend."""
    name = get_backend()
    if _native is not None and name != "numpy":
        _native.varlen(call, name, _threads.get_num_threads())
    elif call.attention_v is not None:
        _reference_additive.varlen(call)
    else:
        _reference.varlen(call)
    call.clear_tail()


def merge(
    outs: list[np.ndarray], lses: list[np.ndarray], dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Merge checked partial results on the current backend."""
    name = get_backend()
    kind = np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)
    is_exact = all(lse.dtype.type is kind.type for lse in lses)  # else another lse may be finer
    if _native is None or name == "numpy" or not (is_exact or dtype.itemsize == 8):
        return _reference.merge(outs, lses, dtype)
    outs = [np.asarray(out, dtype, order="C") for out in outs]
    lses = [np.asarray(lse, kind, order="C") for lse in lses]
    out, lse = np.empty(outs[0].shape, dtype), np.empty(lses[0].shape, kind)
    _native.merge(outs, lses, out, lse, name, _threads.get_num_threads())
    return out, lse


def product(rows: np.ndarray, weight: np.ndarray, out: np.ndarray) -> bool:
    """Write ``rows @ weight`` of float32 or float64 matrices to compact memory, with bits that do
    not depend on how many rows there are. False, and nothing is done, where nothing is compiled
    for that."""
    name = get_backend()
    if _native is None or name == "numpy":
        return False
    _native.product(rows, weight, out, name, _threads.get_num_threads())
    return True


def sdpa_plain(query: Any, key: Any, value: Any, is_causal: Any, scale: Any) -> np.ndarray | None:
    """Check and compute a call without options in one compiled step, or return None."""
    name = get_backend()
    if _native is None or name == "numpy":
        return None
    return _native.sdpa_plain(query, key, value, is_causal, scale, name, _threads.get_num_threads())


def config() -> dict[str, Any]:
    """The facts that `show_config` prints."""
    from . import __version__

    here = _context.get()
    missing = {} if _native is not None else {"native": _why_no_native}
    if _native is not None:
        for name, needs, supported in _native.backend_table():
            if not supported:
                missing[name] = f"needs {needs}"
    return {
        "version": __version__,
        "backend": get_backend(),
        "backend_reason": _settings[-1].why if here is None else "use_backend in this context",
        "backends": backends(),
        "threads": _threads.get_num_threads(),
        "threads_reason": _threads.reason(),
        "compiler": _native.compiler() if _native is not None else "none",
        "asserts": _native.asserts_enabled() if _native is not None else False,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
        "missing": missing,
    }


def show_config(as_dict: bool = False) -> dict[str, Any] | None:
    """Print what fastattn found on this machine and what it chose; useful in bug reports.

    Parameters
    ----------
    as_dict : bool
        Return the facts instead of printing them.

    Returns
    -------
    dict or None
        With `as_dict`: version, backend and the reason for it, all usable backends, number of
        threads and the reason for it, compiler, versions of NumPy and Python, and under
        ``"missing"`` what cannot be used here and why.
    """
    facts = config()
    if as_dict:
        return facts
    missing = [f"{name} ({why})" for name, why in facts["missing"].items()]
    lines = {
        "fastattn": facts["version"],
        "backend": f"{facts['backend']} ({facts['backend_reason']})",
        "backends": ", ".join(facts["backends"]),
        "threads": f"{facts['threads']} ({facts['threads_reason']})",
        "compiler": facts["compiler"] + (", asserts on" if facts["asserts"] else ""),
        "numpy": facts["numpy"],
        "python": facts["python"],
        "missing": ", ".join(missing) or "nothing",
    }
    for label, text in lines.items():
        print(f"{label + ':':10} {text}")
    return None
