# SPDX-License-Identifier: MIT
# Types of the compiled module, which may be absent.
# For type checkers; the module itself is _native.pyx.
# It checks no user input: every argument has passed _validate.
from typing import Any

import numpy as np

from ._validate import SdpaCall
from ._validate_additive import AdditiveCall
from ._validate_varlen import VarlenCall

def backend_names() -> list[str]: ...
def backend_table() -> list[tuple[str, str, bool]]: ...
def sdpa(call: SdpaCall, name: str, n_threads: int) -> None: ...
def sdpa_plain(
    query: Any, key: Any, value: Any, is_causal: Any, scale: Any, name: str, n_threads: int
) -> np.ndarray | None: ...
def additive(
    call: AdditiveCall, packed_keys: np.ndarray | None, name: str, n_threads: int
) -> None: ...
def pack_additive_keys(key: np.ndarray, name: str) -> np.ndarray: ...
def varlen(call: VarlenCall, name: str, n_threads: int) -> None: ...
def merge(
    outs: list[np.ndarray],
    lses: list[np.ndarray],
    out: np.ndarray,
    lse: np.ndarray,
    name: str,
    n_threads: int,
) -> None: ...
def product(
    rows: np.ndarray, weight: np.ndarray, out: np.ndarray, name: str, n_threads: int
) -> None: ...
def plan(
    n_batch: int,
    n_q_heads: int,
    n_kv_heads: int,
    n_queries: int,
    n_keys: int,
    qk_size: int,
    v_size: int,
    *,
    is_causal: bool = False,
    backend: str | None = None,
) -> dict[str, Any]: ...
def probe(
    backend: str,
    op: str,
    a: np.ndarray,
    b: np.ndarray | None = None,
    c: np.ndarray | None = None,
) -> np.ndarray: ...
def ceiling_fma(backend: str, n_threads: int, n_rounds: int) -> float: ...
def ceiling_div(backend: str, n_threads: int, n_rounds: int) -> float: ...
def ceiling_read(backend: str, n_threads: int, array: np.ndarray) -> float: ...
def pool_n_workers() -> int: ...
def pool_shutdown() -> None: ...
def compiler() -> str: ...
def asserts_enabled() -> bool: ...
