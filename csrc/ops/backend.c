/* SPDX-License-Identifier: MIT
 * Implements ops/backend.h and the backend, probe and ceiling functions of fastattn.h.
 * The only reader of isa/isa_list.h besides the list's own files. */
#include "ops/backend.h"

#include "base/cpu.h"
#include "base/pool.h"
#include "isa/isa_list.h"

#define FA_DECLARE(name, needs) \
    extern const fa_kernels fa_kernels__##name, fa_kernels__##name##_f64;
FA_ISA_LIST(FA_DECLARE)

typedef struct entry {
    const fa_kernels *kernels, *of_doubles;
    uint32_t needs;
} entry;

#define FA_ENTRY(name, needs) {&fa_kernels__##name, &fa_kernels__##name##_f64, needs},
static const entry entries[] = {FA_ISA_LIST(FA_ENTRY)};
enum { N_ENTRIES = sizeof entries / sizeof entries[0] };

int fa_backend_count(void) { return N_ENTRIES; }

const char *fa_backend_name(int index) { return entries[index].kernels->name; }

void fa_backend_needs(int index, char *text, int n_text) {
    fa_cpu_feature_names(entries[index].needs, text, (size_t)n_text);
}

int fa_backend_supported(int index) {
    return (fa_cpu_features() & entries[index].needs) == entries[index].needs;
}

const fa_kernels *fa_backend_get(int index, int type) {
    if (index < 0 || index >= N_ENTRIES || !fa_backend_supported(index)) return NULL;
    return type == FA_F64 ? entries[index].of_doubles : entries[index].kernels;
}

int fa_probe(int backend, int type, const char *op, const void *a, const void *b, const void *c,
             void *out, int64_t n) {
    const fa_kernels *kernels = fa_backend_get(backend, type);
    return kernels && kernels->probe(op, a, b, c, out, n) ? FA_OK : FA_BROKEN_CONTRACT;
}

/* One task per thread; each leaves its result in its own place. */
enum { FA_MAX_CEILING_THREADS = 128 };

typedef struct ceiling {
    const fa_kernels *kernels;
    int64_t n_rounds;
    const float *data;
    int64_t n_floats, n_parts;
    double result[FA_MAX_CEILING_THREADS];
} ceiling;

static void fma_task(void *ctx, int64_t i, fa_worker *worker) {
    ceiling *c = ctx;
    (void)worker;
    c->result[i] = c->kernels->ceiling_fma(c->n_rounds);
}

static void div_task(void *ctx, int64_t i, fa_worker *worker) {
    ceiling *c = ctx;
    (void)worker;
    c->result[i] = c->kernels->ceiling_div(c->n_rounds);
}

static void read_task(void *ctx, int64_t i, fa_worker *worker) {
    ceiling *c = ctx;
    int64_t part = fa_ceil_div(c->n_floats, c->n_parts);
    int64_t begin = fa_min64(c->n_floats, i * part), end = fa_min64(c->n_floats, begin + part);
    (void)worker;
    c->result[i] = c->kernels->ceiling_read(c->data + begin, end - begin);
}

static double run_ceiling(const fa_exec *exec, ceiling *c, fa_task_fn task) {
    int n = fa_min(exec->n_threads, FA_MAX_CEILING_THREADS);
    double sum = 0.0;
    c->kernels = fa_backend_get(exec->backend, FA_F32);
    c->n_parts = n;
    if (!c->kernels || fa_pool_run(n, task, c, n, NULL) != FA_OK) return 0.0;
    for (int i = 0; i < n; i++) sum += c->result[i];
    return sum;
}

double fa_ceiling_fma(const fa_exec *exec, int64_t n_rounds) {
    ceiling c = {.n_rounds = n_rounds};
    return run_ceiling(exec, &c, fma_task);
}

double fa_ceiling_div(const fa_exec *exec, int64_t n_rounds) {
    ceiling c = {.n_rounds = n_rounds};
    return run_ceiling(exec, &c, div_task);
}

double fa_ceiling_read(const fa_exec *exec, const float *data, int64_t n_floats) {
    ceiling c = {.data = data, .n_floats = n_floats};
    return run_ceiling(exec, &c, read_task);
}

const char *fa_compiler(void) {
#if defined(__clang__)
    return "clang " __clang_version__;
#elif defined(__GNUC__)
    return "gcc " __VERSION__;
#elif defined(_MSC_VER)
    return "msvc";
#else
    return "unknown";
#endif
}

int fa_asserts_enabled(void) {
#ifdef FA_ASSERTS
    return 1;
#else
    return 0;
#endif
}
