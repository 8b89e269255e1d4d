# SPDX-License-Identifier: MIT
# cython: language_level=3, freethreading_compatible=True
# The border to csrc/: a checked call becomes a C struct on the stack, and a status an exception.
# Used by functional.py and _backend.py.  No policy, no checks of the user's data, no element loops.
"""Compiled kernels of fastattn; private: use the functions of the package."""

cimport numpy as cnp
from libc.float cimport FLT_MAX
from libc.math cimport sqrt
from libc.stdint cimport intptr_t
from libc.string cimport memset

import os
import threading

cnp.import_array()

cdef extern from "Python.h":
    int PyErr_CheckSignals() noexcept  # not "except -1": the callback below only reports
    void *PyErr_Occurred() noexcept
    unsigned long PyThread_get_thread_ident() noexcept nogil


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


cdef int type_of(cnp.ndarray x) noexcept:
    cdef int number = cnp.PyArray_TYPE(x)
    if number == cnp.NPY_FLOAT32:
        return FA_F32
    if number == cnp.NPY_FLOAT64:
        return FA_F64
    if number == cnp.NPY_FLOAT16:
        return FA_F16
    if number == cnp.NPY_INT8:
        return FA_I8
    if number == cnp.NPY_BOOL:
        return FA_BOOL
    return FA_BF16  # the only one that is not NumPy's own


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
    a.type = type_of(x)
    return 0


cdef void *data_of(object array):
    return NULL if array is None else cnp.PyArray_DATA(<cnp.ndarray> array)


cdef int set_arrays(fa_sdpa_desc *d, cnp.ndarray query, cnp.ndarray key, cnp.ndarray value,
                    cnp.ndarray out) except -1:
    # The four arrays and all sizes.
    cdef int n_lead = cnp.PyArray_NDIM(query) - 3, i
    cdef const intptr_t *q_shape = <const intptr_t *> cnp.PyArray_DIMS(query)
    cdef const intptr_t *k_shape = <const intptr_t *> cnp.PyArray_DIMS(key)
    cdef int k_last = cnp.PyArray_NDIM(key) - 1  # in pages, they have an axis that query lacks
    d.n_lead = n_lead
    d.lead_shape = q_shape
    d.n_batch = 1
    for i in range(n_lead):
        d.n_batch *= q_shape[i]
    d.n_q_heads = q_shape[n_lead]
    d.n_queries = q_shape[n_lead + 1]
    d.qk_size = q_shape[n_lead + 2]
    d.n_kv_heads = k_shape[k_last - 2]
    d.n_keys = k_shape[k_last - 1]
    d.v_size = cnp.PyArray_DIMS(value)[k_last]
    set_array(&d.query, query)
    set_array(&d.key, key)
    set_array(&d.value, value)
    set_array(&d.out, out)
    return 0


cdef int run(fa_sdpa_desc *d, str name, int n_threads) except -1:
    cdef int status
    d.exec.backend = INDEX[name]
    d.exec.n_threads = n_threads
    if PyThread_get_thread_ident() == main_thread:
        d.exec.interrupted = interrupted
    with nogil:
        status = fa_sdpa(d)
    return raise_status(status)


cdef int fill(fa_sdpa_desc *d, call) except -1:
    # What dot-product and additive calls have in common.
    cdef object offset = call.q_offset
    set_arrays(d, call.query, call.key, call.value, call.out)
    set_array(&d.attn_mask, call.attn_mask)
    set_array(&d.bias, call.bias)
    d.lse = data_of(call.lse)
    d.weights = data_of(call.weights)
    if isinstance(offset, int):
        d.q_offset = offset
    else:
        d.q_offsets = <const int64_t *> data_of(offset)
    d.kv_lengths = <const int64_t *> data_of(call.kv_lengths)
    d.slopes = data_of(call.slopes)
    if call.slopes is not None and call.slopes.ndim == 2:
        d.slopes_batch_stride = d.n_q_heads
    d.sinks = data_of(call.sinks)
    d.scale = call.scale
    d.softcap = call.softcap
    d.is_causal = call.is_causal
    d.window_left = call.left
    d.window_right = call.right
    set_array(&d.key_factors, call.key_factors)
    set_array(&d.value_factors, call.value_factors)
    if call.local is not None:
        d.centers = <const double *> data_of(call.local.centers)
        d.half_width = call.local.half_width
        d.sigma = call.local.sigma
    if call.hard is not None:
        d.picks = <int64_t *> data_of(call.hard.indices)
        d.draws = <const double *> data_of(call.hard.draws)
    return 0


def sdpa(call, str name, int n_threads):
    """Compute a checked call (`_validate.SdpaCall`) on the backend `name`."""
    cdef fa_sdpa_desc d
    memset(&d, 0, sizeof(d))
    fill(&d, call)
    run(&d, name, n_threads)


cdef int set_vectors(fa_sdpa_desc *d, object attention_v) except -1:
    cdef cnp.ndarray a = attention_v
    d.attention_v = data_of(a)
    d.attention_v_stride = d.qk_size if cnp.PyArray_DIMS(a)[0] > 1 else 0
    return 0


def additive(call, packed_keys, str name, int n_threads):
    """Compute a checked call (`_validate_additive.AdditiveCall`) on the backend `name`;
    `packed_keys` is None or what `pack_additive_keys` made of the call's key."""
    cdef fa_sdpa_desc d
    memset(&d, 0, sizeof(d))
    fill(&d, call)
    set_vectors(&d, call.attention_v)
    d.packed_keys = data_of(packed_keys)
    run(&d, name, n_threads)


def varlen(call, str name, int n_threads):
    """Compute a checked call of packed sequences (`_validate_varlen.VarlenCall`) on the backend `name`."""
    cdef fa_varlen_desc d
    cdef int status
    memset(&d, 0, sizeof(d))
    fill(&d.call, call)
    if call.attention_v is not None:
        set_vectors(&d.call, call.attention_v)
    d.call.n_batch = 1
    d.n_sequences = call.cu_queries.size - 1
    d.cu_queries = <const int64_t *> data_of(call.cu_queries)
    d.cu_keys = <const int64_t *> data_of(call.cu_keys)
    if call.pages is not None:
        d.call.page_size = d.call.n_keys
        d.call.pages = <const int32_t *> data_of(call.pages)
        d.first_page = <const int64_t *> data_of(call.first_pages)
    d.q_offsets = <const int64_t *> d.call.q_offsets
    d.call.q_offsets = NULL
    d.slopes_stride = d.call.slopes_batch_stride
    d.call.slopes_batch_stride = 0
    d.call.exec = executor(name, n_threads)
    if PyThread_get_thread_ident() == main_thread:
        d.call.exec.interrupted = interrupted
    with nogil:
        status = fa_varlen(&d)
    raise_status(status)


def merge(outs, lses, out, lse, str name, int n_threads):
    """Merge parts into `out` (rows, size) and `lse`: C-contiguous arrays of one shape and dtype each,
    lists of `outs` and of `lses`, which are float64 if `out` is, else float32."""
    cdef fa_merge_desc d
    cdef cnp.ndarray result = out
    cdef int status, nd = cnp.PyArray_NDIM(result), i
    cdef int64_t n
    memory = bytearray(len(outs) * sizeof(fa_merge_part))
    cdef char[::1] view = memory
    cdef fa_merge_part *parts = <fa_merge_part *> &view[0]
    memset(&d, 0, sizeof(d))
    for n in range(len(outs)):
        parts[n].out = data_of(outs[n])
        parts[n].lse = data_of(lses[n])
    d.exec = executor(name, n_threads)
    if PyThread_get_thread_ident() == main_thread:
        d.exec.interrupted = interrupted
    d.parts = parts
    d.n_parts = len(outs)
    d.size = cnp.PyArray_DIMS(result)[nd - 1]
    d.n_rows = 1
    for i in range(nd - 1):
        d.n_rows *= cnp.PyArray_DIMS(result)[i]
    d.type = type_of(result)
    d.out = data_of(result)
    d.lse = data_of(lse)
    with nogil:
        status = fa_merge(&d)
    raise_status(status)


def product(rows, weight, out, str name, int n_threads):
    """Write rows (n, size) @ weight (size, columns) to `out`: all float32 or all float64, native,
    aligned; rows step by one element along their last axis, weight and out (of any shape) are
    C-contiguous."""
    cdef fa_product_desc d
    cdef cnp.ndarray a = rows
    cdef cnp.ndarray w = weight
    cdef int status
    d.n_rows = cnp.PyArray_DIMS(a)[0]
    d.n_cols = cnp.PyArray_DIMS(w)[1]
    d.exec = executor(name, n_threads)
    if PyThread_get_thread_ident() == main_thread:
        d.exec.interrupted = interrupted
    d.type = FA_F64 if cnp.PyArray_ITEMSIZE(a) == 8 else FA_F32
    d.rows = data_of(a)
    d.row_stride = cnp.PyArray_STRIDES(a)[0] // cnp.PyArray_ITEMSIZE(a)
    d.size = cnp.PyArray_DIMS(a)[1]
    d.weight = data_of(w)
    d.out = data_of(out)
    with nogil:
        status = fa_product(&d)
    raise_status(status)


def pack_additive_keys(key, str name):
    """Pack a C-contiguous float32 or float64 key (..., kv_heads, keys, size) for `additive`; return
    bytes that only a call of its dtype on the same backend understands, as an aligned uint8 array."""
    cdef cnp.ndarray k = key
    cdef int nd = cnp.PyArray_NDIM(k), backend = INDEX[name]
    cdef int64_t n_keys = cnp.PyArray_DIMS(k)[nd - 2], size = cnp.PyArray_DIMS(k)[nd - 1]
    cdef int64_t item = cnp.PyArray_ITEMSIZE(k), n = 1, i
    cdef int kind = FA_F64 if item == 8 else FA_F32
    cdef int64_t step = fa_additive_packed_bytes(backend, kind, n_keys, size)
    cdef cnp.npy_intp shape[1]
    cdef char *to
    cdef const char *rows = <const char *> cnp.PyArray_DATA(k)
    for i in range(nd - 2):
        n *= cnp.PyArray_DIMS(k)[i]
    shape[0] = n * step + 64
    memory = cnp.PyArray_EMPTY(1, shape, cnp.NPY_UINT8, 0)
    skip = -(<intptr_t> cnp.PyArray_DATA(memory)) % 64
    packed = memory[skip : skip + n * step]
    to = <char *> cnp.PyArray_DATA(<cnp.ndarray> packed)
    with nogil:
        for i in range(n):
            fa_additive_pack(backend, kind, rows + i * n_keys * size * item, size, n_keys, size,
                             to + i * step)
    return packed


cdef bint is_plain(object x):
    # An ndarray and no subclass, of native float32, contiguous, with (..., heads, rows, dim).
    return (cnp.PyArray_CheckExact(x) and cnp.PyArray_TYPE(<cnp.ndarray> x) == cnp.NPY_FLOAT32
            and cnp.PyArray_ISCARRAY_RO(<cnp.ndarray> x) and cnp.PyArray_NDIM(<cnp.ndarray> x) >= 3)


cdef bint fit(cnp.ndarray query, cnp.ndarray key, cnp.ndarray value):
    # Sizes that need no broadcasting.
    cdef int nd = cnp.PyArray_NDIM(query), i
    cdef cnp.npy_intp *q = cnp.PyArray_DIMS(query)
    cdef cnp.npy_intp *k = cnp.PyArray_DIMS(key)
    cdef cnp.npy_intp *v = cnp.PyArray_DIMS(value)
    if cnp.PyArray_NDIM(key) != nd or cnp.PyArray_NDIM(value) != nd:
        return False
    for i in range(nd - 3):
        if k[i] != q[i] or v[i] != q[i]:
            return False
    return (k[nd - 1] == q[nd - 1] and v[nd - 2] == k[nd - 2] and v[nd - 3] == k[nd - 3]
            and k[nd - 3] > 0 and q[nd - 3] % k[nd - 3] == 0 and q[nd - 1] > 0)


def sdpa_plain(query, key, value, is_causal, scale, str name, int n_threads):
    """Compute a call without options on three arrays that no one need look at twice.

    The short way for small calls, whose time is the checking. Returns None, and has done nothing,
    where anything is unusual or wrong: then `_validate` looks.
    """
    cdef fa_sdpa_desc d
    cdef cnp.npy_intp shape[64]
    cdef cnp.ndarray out
    cdef int nd, i
    if not (is_plain(query) and is_plain(key) and is_plain(value) and fit(query, key, value)):
        return None
    nd = cnp.PyArray_NDIM(<cnp.ndarray> query)
    if nd > 64 or not (is_causal is True or is_causal is False):
        return None
    memset(&d, 0, sizeof(d))
    if scale is None:
        d.scale = 1.0 / sqrt(<double> cnp.PyArray_DIMS(<cnp.ndarray> query)[nd - 1])
    elif type(scale) is float and -FLT_MAX <= <double> scale <= FLT_MAX:
        d.scale = scale
    else:
        return None
    for i in range(nd - 1):
        shape[i] = cnp.PyArray_DIMS(<cnp.ndarray> query)[i]
    shape[nd - 1] = cnp.PyArray_DIMS(<cnp.ndarray> value)[nd - 1]
    try:
        out = cnp.PyArray_EMPTY(nd, shape, cnp.NPY_FLOAT32, 0)
    except ValueError:  # more bytes than an address can hold
        return None
    set_arrays(&d, query, key, value, out)
    d.is_causal = is_causal is True
    d.window_left = d.window_right = -1
    run(&d, name, n_threads)
    return out


cdef dict TYPES = {"float32": FA_F32, "float64": FA_F64, "float16": FA_F16,
                   "bfloat16": FA_BF16, "int8": FA_I8}


def plan(int64_t n_batch, int64_t n_q_heads, int64_t n_kv_heads, int64_t n_queries, int64_t n_keys,
         int64_t qk_size, int64_t v_size, *, bint is_causal=False, backend=None,
         str dtype="float32"):
    """Return how a call of this shape would be cut, as a dict of sizes."""
    cdef fa_sdpa_desc d
    cdef fa_sdpa_plan_info info
    memset(&d, 0, sizeof(d))
    d.exec.backend = INDEX[backend if backend is not None else next(iter(INDEX))]
    d.exec.n_threads = 1
    d.n_batch, d.n_q_heads, d.n_kv_heads = n_batch, n_q_heads, n_kv_heads
    d.n_queries, d.n_keys, d.qk_size, d.v_size = n_queries, n_keys, qk_size, v_size
    d.is_causal = is_causal
    d.query.type = d.key.type = d.value.type = d.out.type = TYPES[dtype]
    raise_status(fa_sdpa_plan_query(&d, &info))
    return {"is_decode": bool(info.is_decode), "n_tasks": info.n_tasks,
            "rows_per_task": info.rows_per_task, "key_chunk": info.key_chunk,
            "row_block": info.row_block, "key_tile": info.key_tile,
            "scratch_bytes": info.scratch_bytes}


def probe(str backend, str op, a, b=None, c=None):
    """Run one vector operation of a backend over float32 or float64 arrays, all of the dtype of the
    first; for the tests of the vec layer."""
    cdef cnp.ndarray x = a
    cdef cnp.ndarray y = a if b is None else b
    cdef cnp.ndarray z = a if c is None else c
    cdef cnp.ndarray out = cnp.PyArray_EMPTY(1, cnp.PyArray_DIMS(x), cnp.PyArray_TYPE(x), 0)
    for array in (x, y, z):
        if array.dtype != x.dtype or array.dtype not in ("float32", "float64"):
            raise ValueError("probe: expected float32 or float64 vectors")
        if array.ndim != 1 or array.size != x.size:
            raise ValueError("probe: expected vectors of one length")
        if not array.flags.c_contiguous:
            raise ValueError("probe: expected contiguous arrays")
    if fa_probe(INDEX[backend], type_of(x), op.encode(), data_of(x), data_of(y),
                data_of(z), data_of(out), x.size) != FA_OK:
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


def ceiling_div(str backend, int n_threads, int64_t n_rounds):
    """Run independent chains of divisions on every thread; return the number of divisions done."""
    cdef fa_exec e = executor(backend, n_threads)
    cdef double n_divisions
    with nogil:
        n_divisions = fa_ceiling_div(&e, n_rounds)
    return n_divisions


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
