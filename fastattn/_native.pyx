# SPDX-License-Identifier: MIT
# cython: language_level=3, freethreading_compatible=True
# The border to csrc/: a checked call becomes a C struct on the stack, and a status an exception.
# Used by functional.py and _backend.py.  No policy, no checks of the user's data, no element loops.
"""Compiled kernels of fastattn; private: use the functions of the package."""

cimport numpy as cnp
from libc.stdint cimport intptr_t
from libc.string cimport memset

import os
import threading

cnp.import_array()

cdef extern from "Python.h":
    int PyErr_CheckSignals() noexcept  # not "except -1": the callback below only reports
    void *PyErr_Occurred() noexcept
    unsigned long PyThread_get_thread_ident() noexcept nogil

cdef dict TYPES = {"float32": FA_F32, "float64": FA_F64, "float16": FA_F16,
                   "bfloat16": FA_BF16, "bool": FA_BOOL}


def backend_table():
    """Return ``[(name, needed CPU features, runs here)]``, best first."""
    cdef char needs[128]
    table = []
    for i in range(fa_backend_count()):
        fa_backend_needs(i, needs, sizeof(needs))
        table.append((fa_backend_name(i).decode(), (<bytes> needs).decode(),
                      bool(fa_backend_supported(i))))
    return table


# name -> index in the C table, for the backends that run here
cdef dict INDEX = {row[0]: i for i, row in enumerate(backend_table()) if row[2]}


def backend_names():
    """Return the names of the backends that run on this machine, best first."""
    return list(INDEX)


# Only the main thread handles signals.  Others must not even ask: taking the GIL while the
# interpreter ends may kill a thread (CPython < 3.14), with workers still at its call.
cdef unsigned long main_thread = threading.main_thread().ident


def _after_fork():
    global main_thread
    main_thread = PyThread_get_thread_ident()  # whoever forked is the child's main thread


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


cdef int interrupted() noexcept with gil:
    # Runs pending signal handlers; an exception stays set and is raised by raise_status.
    return PyErr_CheckSignals() != 0


cdef int raise_status(int status) except -1:
    if status == FA_OK:
        return 0
    if status == FA_NO_MEMORY:
        raise MemoryError("fastattn: not enough memory for the working set of this call")
    if status == FA_INTERRUPTED:
        if PyErr_Occurred() != NULL:
            return -1
        raise RuntimeError("fastattn: a signal handler forked during this call; its result stays "
                           "with the parent process")
    raise SystemError(f"fastattn: broken internal contract (status {status}); please report this")


cdef int set_array(fa_array *a, object array) except -1:
    cdef cnp.ndarray x
    cdef int last
    cdef intptr_t item
    if array is None:
        return 0
    x = array
    last = cnp.PyArray_NDIM(x) - 1
    item = cnp.PyArray_ITEMSIZE(x)
    a.data = cnp.PyArray_DATA(x)
    a.lead_bytes = <const intptr_t *> cnp.PyArray_STRIDES(x)
    a.head_stride = cnp.PyArray_STRIDES(x)[last - 2] // item
    a.row_stride = cnp.PyArray_STRIDES(x)[last - 1] // item
    a.col_stride = cnp.PyArray_STRIDES(x)[last] // item
    if item == 4:
        a.type = FA_F32
    elif item == 1:
        a.type = FA_BOOL
    else:
        a.type = TYPES[x.dtype.name]
    return 0


cdef void *data_of(object array):
    return NULL if array is None else cnp.PyArray_DATA(<cnp.ndarray> array)


def sdpa(call, str name, int n_threads):
    """Compute a checked float32 call (`_validate.SdpaCall`) on the backend `name`."""
    cdef fa_sdpa_desc d
    cdef cnp.ndarray query = call.query, key = call.key, value = call.value
    cdef int nd = cnp.PyArray_NDIM(query), i, status
    cdef object offset = call.q_offset
    memset(&d, 0, sizeof(d))
    d.exec.backend = INDEX[name]
    d.exec.n_threads = n_threads
    if PyThread_get_thread_ident() == main_thread:
        d.exec.interrupted = interrupted
    d.n_lead = nd - 3
    d.lead_shape = <const intptr_t *> cnp.PyArray_DIMS(query)
    d.n_batch = 1
    for i in range(nd - 3):
        d.n_batch *= cnp.PyArray_DIMS(query)[i]
    d.n_q_heads = cnp.PyArray_DIMS(query)[nd - 3]
    d.n_queries = cnp.PyArray_DIMS(query)[nd - 2]
    d.qk_size = cnp.PyArray_DIMS(query)[nd - 1]
    d.n_kv_heads = cnp.PyArray_DIMS(key)[nd - 3]
    d.n_keys = cnp.PyArray_DIMS(key)[nd - 2]
    d.v_size = cnp.PyArray_DIMS(value)[nd - 1]
    set_array(&d.query, query)
    set_array(&d.key, key)
    set_array(&d.value, value)
    set_array(&d.out, call.out)
    set_array(&d.attn_mask, call.attn_mask)
    set_array(&d.bias, call.bias)
    d.lse = <float *> data_of(call.lse)
    d.weights = <float *> data_of(call.weights)
    if isinstance(offset, int):
        d.q_offset = offset
    else:
        d.q_offsets = <const int64_t *> data_of(offset)
    d.kv_lengths = <const int64_t *> data_of(call.kv_lengths)
    d.slopes = <const float *> data_of(call.slopes)
    if call.slopes is not None and call.slopes.ndim == 2:
        d.slopes_batch_stride = d.n_q_heads
    d.sinks = <const float *> data_of(call.sinks)
    d.scale = call.scale
    d.softcap = call.softcap
    d.is_causal = call.is_causal
    d.window_left = call.left
    d.window_right = call.right
    with nogil:
        status = fa_sdpa(&d)
    raise_status(status)


def plan(int64_t n_batch, int64_t n_q_heads, int64_t n_kv_heads, int64_t n_queries, int64_t n_keys,
         int64_t qk_size, int64_t v_size, *, bint is_causal=False, backend=None):
    """Return how a call of this shape would be cut, as a dict of sizes."""
    cdef fa_sdpa_desc d
    cdef fa_sdpa_plan_info info
    memset(&d, 0, sizeof(d))
    d.exec.backend = INDEX[backend if backend is not None else next(iter(INDEX))]
    d.exec.n_threads = 1
    d.n_batch, d.n_q_heads, d.n_kv_heads = n_batch, n_q_heads, n_kv_heads
    d.n_queries, d.n_keys, d.qk_size, d.v_size = n_queries, n_keys, qk_size, v_size
    d.is_causal = is_causal
    raise_status(fa_sdpa_plan_query(&d, &info))
    return {"is_decode": bool(info.is_decode), "n_tasks": info.n_tasks,
            "rows_per_task": info.rows_per_task, "key_chunk": info.key_chunk,
            "row_block": info.row_block, "key_tile": info.key_tile,
            "scratch_bytes": info.scratch_bytes}


def probe(str backend, str op, a, b=None, c=None):
    """Run one vector operation of a backend over float32 arrays; for the tests of the vec layer."""
    cdef cnp.ndarray x = a
    cdef cnp.ndarray y = a if b is None else b
    cdef cnp.ndarray z = a if c is None else c
    cdef cnp.ndarray out = cnp.PyArray_EMPTY(1, cnp.PyArray_DIMS(x), cnp.NPY_FLOAT32, 0)
    for array in (x, y, z):
        if array.dtype != "float32" or array.ndim != 1 or array.size != x.size:
            raise ValueError("probe: expected float32 vectors of one length")
        if not array.flags.c_contiguous:
            raise ValueError("probe: expected contiguous arrays")
    if fa_probe(INDEX[backend], op.encode(), <const float *> data_of(x), <const float *> data_of(y),
                <const float *> data_of(z), <float *> data_of(out), x.size) != FA_OK:
        raise ValueError(f"probe: no vector operation {op!r}")
    return out


cdef fa_exec executor(str backend, int n_threads):
    cdef fa_exec e
    e.backend = INDEX[backend]
    e.n_threads = n_threads
    e.interrupted = NULL
    return e


def ceiling_fma(str backend, int n_threads, int64_t n_rounds):
    """Run independent FMA chains on every thread; return the floating-point operations done."""
    cdef fa_exec e = executor(backend, n_threads)
    cdef double flops
    with nogil:
        flops = fa_ceiling_fma(&e, n_rounds)
    return flops


def ceiling_read(str backend, int n_threads, array):
    """Read a contiguous float32 vector once, split over the threads; return a sum of it."""
    cdef fa_exec e = executor(backend, n_threads)
    cdef cnp.ndarray x = array
    cdef const float *data = <const float *> data_of(x)
    cdef int64_t n = x.size
    cdef double total
    if x.dtype != "float32" or not x.flags.c_contiguous:
        raise ValueError("ceiling_read: expected a contiguous float32 array")
    with nogil:
        total = fa_ceiling_read(&e, data, n)
    return total


def pool_n_workers():
    """Return the number of live worker threads."""
    return fa_pool_n_workers()


def pool_shutdown():
    """End the worker threads; the next threaded call starts new ones."""
    with nogil:
        fa_pool_shutdown()


def compiler():
    """Return the name and version of the compiler that built this module."""
    return fa_compiler().decode()


def asserts_enabled():
    """Return whether the C code checks its internal contracts (test builds)."""
    return bool(fa_asserts_enabled())
