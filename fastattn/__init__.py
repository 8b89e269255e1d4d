# SPDX-License-Identifier: MIT
"""fastattn: exact attention on CPUs, for NumPy arrays.

The public names, and the map of the package. For users: everything they need is imported from
here. Nothing is computed in this file.

=================================  ==============================================================
``scaled_dot_product_attention``   softmax(scale * Q K^T + masks) V, with the options people need
``additive_attention``             the same with Bahdanau's scores, v . tanh(q Wq + k Wk + b)
``prepare_additive_keys``          their keys, projected once for many queries: ``AdditiveKeys``
``attention``                      the same with any of the kinds of scores in ``scores``
``local_attention``                the same within a window around a place of each query's own
``hard_attention``                 one key a query: the best one, or one drawn by the weights
``varlen_attention``               packed sequences of any lengths, without padding
``KVCache``                        keys and values of growing sequences, for decoders
``PagedKVCache``                   the same in pages, for servers: sequences come, go, share
``merge_attention``                exact merge of partial results over disjoint sets of keys
``set_num_threads``                how many threads compute, for the process
``get_num_threads``                how many threads a call from here may use
``threads``                        how many threads compute, for the calling context
``backends``                       names of what can compute on this machine, best first
``get_backend``                    name of what computes now
``use_backend``                    choose what computes, for the process or for the context
``show_config``                    what was found here, and why it was chosen
``layers``                         attention with weights: layers of the literature
``plotting``                       pictures of weights (needs matplotlib)
=================================  ==============================================================

How a call travels: ``functional``, ``additive``, ``scores``, ``local``, ``hard``, ``varlen``,
``cache``, ``paged`` (signatures) -> ``_validate`` and its ``_validate_additive``,
``_validate_scores``, ``_validate_selection``, ``_validate_varlen``, ``_validate_cache``,
``_validate_paged`` (every check, once) ->
``_backend`` (who computes) -> ``_native`` (compiled) or ``_reference`` and its
``_reference_additive``, ``_reference_local``, ``_reference_hard`` (NumPy).
``_threads`` knows the number of threads, ``_storage`` where a cache keeps its tokens, ``_quantize``
what these are in 8 bits, ``_pages`` which sequence owns which pages. ``layers`` and ``plotting``
are built on top, and imported when they are first used.
"""

__version__ = "0.1.0"  # the only place where the version is written

from typing import Any

from . import scores
from ._backend import backends, get_backend, show_config, use_backend
from ._threads import get_num_threads, set_num_threads, threads
from .additive import additive_attention, prepare_additive_keys
from .additive_keys import AdditiveKeys
from .cache import KVCache
from .functional import merge_attention, scaled_dot_product_attention
from .hard import hard_attention
from .local import local_attention
from .paged import PagedKVCache
from .scores import attention
from .varlen import varlen_attention

__all__ = [
    "AdditiveKeys",
    "KVCache",
    "PagedKVCache",
    "__version__",
    "additive_attention",
    "attention",
    "backends",
    "get_backend",
    "get_num_threads",
    "hard_attention",
    "local_attention",
    "merge_attention",
    "prepare_additive_keys",
    "scaled_dot_product_attention",
    "scores",
    "set_num_threads",
    "show_config",
    "threads",
    "use_backend",
    "varlen_attention",
]

_LAZY = ("layers", "plotting")  # most programs need neither, and importing them takes time


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
