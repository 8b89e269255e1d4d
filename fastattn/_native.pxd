# SPDX-License-Identifier: MIT
# The mirror of csrc/fastattn.h for Cython, name by name.
# Used by _native.pyx.  Contracts are in the header and not repeated here.
from libc.stdint cimport int32_t, int64_t, intptr_t

cdef extern from "fastattn.h" nogil:
    enum fa_status:
        FA_OK
        FA_NO_MEMORY
        FA_INTERRUPTED
        FA_BROKEN_CONTRACT

    enum fa_type:
        FA_F32
        FA_F64
        FA_F16
        FA_BF16
        FA_I8
        FA_BOOL

    ctypedef struct fa_array:
        void *data
        const intptr_t *lead_bytes
        int64_t head_stride
        int64_t row_stride
        int64_t col_stride
        int type

    ctypedef struct fa_exec:
        int backend
        int n_threads
        int (*interrupted)() noexcept nogil

    ctypedef struct fa_sdpa_desc:
        fa_exec exec "exec"
        int n_lead
        const intptr_t *lead_shape
        int64_t n_batch, n_q_heads, n_kv_heads, n_queries, n_keys, qk_size, v_size
        fa_array query, key, value, out
        fa_array attn_mask, bias
        void *lse
        int64_t lse_head_stride
        void *weights
        const int64_t *q_offsets
        int64_t q_offset
        const int64_t *kv_lengths
        const void *slopes
        int64_t slopes_batch_stride
        const void *sinks
        double scale
        double softcap
        const void *attention_v
        int64_t attention_v_stride
        const void *packed_keys
        int is_causal
        int64_t window_left, window_right
        fa_array key_factors, value_factors
        int64_t page_size
        const int32_t *pages
        const double *centers
        double half_width, sigma
        int64_t *picks
        const double *draws

    ctypedef struct fa_sdpa_plan_info:
        int is_decode
        int64_t n_tasks, rows_per_task, key_chunk
        int row_block, key_tile
        int64_t scratch_bytes

    ctypedef struct fa_varlen_desc:
        fa_sdpa_desc call
        int64_t n_sequences
        const int64_t *cu_queries
        const int64_t *cu_keys
        const int64_t *q_offsets
        int64_t slopes_stride
        const int64_t *first_page

    ctypedef struct fa_merge_part:
        const void *out
        const void *lse

    ctypedef struct fa_merge_desc:
        fa_exec exec "exec"
        const fa_merge_part *parts
        int64_t n_parts, n_rows, size
        int type
        void *out
        void *lse

    ctypedef struct fa_product_desc:
        fa_exec exec "exec"
        int type
        const void *rows
        int64_t row_stride, n_rows, size
        const void *weight
        int64_t n_cols
        void *out

    int fa_sdpa(const fa_sdpa_desc *desc) noexcept
    int fa_varlen(const fa_varlen_desc *desc) noexcept
    int fa_merge(const fa_merge_desc *desc) noexcept
    int fa_product(const fa_product_desc *desc) noexcept
    int fa_sdpa_plan_query(const fa_sdpa_desc *desc, fa_sdpa_plan_info *info) noexcept
    int64_t fa_additive_packed_bytes(int backend, int type, int64_t n_keys, int64_t u_size) noexcept
    int fa_additive_pack(int backend, int type, const void *key, int64_t row_stride,
                         int64_t n_keys, int64_t u_size, void *packed) noexcept
    int fa_backend_count() noexcept
    const char *fa_backend_name(int index) noexcept
    void fa_backend_needs(int index, char *text, int n_text) noexcept
    int fa_backend_supported(int index) noexcept
    int fa_pool_n_workers() noexcept
    void fa_pool_shutdown() noexcept
    const char *fa_compiler() noexcept
    int fa_asserts_enabled() noexcept
    double fa_ceiling_fma(const fa_exec *exec, int64_t n_rounds) noexcept
    double fa_ceiling_div(const fa_exec *exec, int64_t n_rounds) noexcept
    double fa_ceiling_read(const fa_exec *exec, const float *data, int64_t n_floats) noexcept
    int fa_probe(int backend, int type, const char *op, const void *a, const void *b,
                 const void *c, void *out, int64_t n) noexcept
