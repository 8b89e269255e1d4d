/* SPDX-License-Identifier: MIT
 * Tests of csrc/base that need C: the pool, scratch, the floating-point environment, CPU features.
 * Run by hand and by CI, also under sanitizers; POSIX only.  It tests no attention.
 *
 *     cc -std=c11 -O2 -g -DFA_ASSERTS -Icsrc tests/c/test_base.c csrc/base/[a-z]*.c -pthread -lm \
 *        -o /tmp/test_base && /tmp/test_base [name]
 *
 * Add -fsanitize=thread (and run it by `setarch -R`) or -fsanitize=address,undefined. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/cpu.h"
#include "base/fpenv.h"
#include "base/pool.h"
#include "base/scratch.h"
#include "base/thread.h"
#include "fastattn.h"

#define CHECK(cond)   \
    ((cond) ? (void)0 \
            : (fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #cond), _exit(1)))
#define MS ((int64_t)1000000)
#define N_ELEMENTS(array) ((int)(sizeof(array) / sizeof *(array)))

#ifndef __has_feature /* gcc before 14 */
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define HAS_TSAN 1
#else
#define HAS_TSAN 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define HAS_ASAN 1
#else
#define HAS_ASAN 0
#endif

/* Sanitizers are told: forked children start threads here (and cannot be searched for leaks), and
 * some allocations are meant to fail. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
    return "die_after_fork=0:atexit_sleep_ms=0:allocator_may_return_null=1";
}
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "detect_leaks=0:allocator_may_return_null=1"; }

static void busy(int64_t ns) {
    for (int64_t end = fa_now_ns() + ns; fa_now_ns() < end;) fa_pause();
}

static void nap(int ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

/* Runs body in a forked child that has 30 s; returns its exit code, or minus the signal. */
static int in_child(void (*body)(void)) {
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        alarm(30);
        body();
        exit(0);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0) CHECK(errno == EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* ---- A call that checks the pool's whole contract ---- */

enum { MAX_SLOTS = 64 };

typedef struct call {
    int64_t n_tasks;
    int n_threads;
    unsigned char *n_runs;   /* per task; plain memory: TSan sees a task run twice */
    int64_t last[MAX_SLOTS]; /* per slot: the last task; plain memory: TSan sees shared slots */
    pthread_t thread[MAX_SLOTS];
    fa_atomic32 n_inside, n_most;
    int64_t task_ns;
} call;

static void check_task(void *ctx, int64_t i, fa_worker *worker) {
    call *c = ctx;
    int slot = fa_worker_slot(worker);
    int inside = fa_add(&c->n_inside, 1) + 1;
    for (int most; (most = fa_load(&c->n_most)) < inside && !fa_cas(&c->n_most, most, inside);) {
    }
    CHECK(0 <= i && i < c->n_tasks);
    CHECK(0 <= slot && slot < c->n_threads && slot < c->n_tasks);
    CHECK(c->last[slot] < i); /* rising order */
    CHECK(c->last[slot] < 0 || pthread_equal(c->thread[slot], pthread_self()));
    c->last[slot] = i;
    c->thread[slot] = pthread_self();
    c->n_runs[i]++;
    if (c->task_ns) busy(c->task_ns);
    fa_add(&c->n_inside, -1);
}

static void check_call(int64_t n_tasks, int n_threads, int64_t task_ns) {
    call c = {.n_tasks = n_tasks, .n_threads = n_threads, .task_ns = task_ns};
    c.n_runs = calloc((size_t)n_tasks + 1, 1);
    for (int s = 0; s < MAX_SLOTS; s++) c.last[s] = -1;
    CHECK(fa_pool_run(n_tasks, check_task, &c, n_threads, NULL) == FA_OK);
    for (int64_t i = 0; i < n_tasks; i++) CHECK(c.n_runs[i] == 1);
    CHECK(fa_load(&c.n_inside) == 0 && fa_load(&c.n_most) <= n_threads);
    if (c.last[0] >= 0) CHECK(pthread_equal(c.thread[0], pthread_self()));
    free(c.n_runs);
}

static void test_every_index_runs_once(void) {
    static const int64_t n_tasks[] = {0, 1, 2, 3, 7, 65, 1000};
    static const int n_threads[] = {1, 2, 3, 8, 32, 64};
    for (int i = 0; i < N_ELEMENTS(n_tasks); i++)
        for (int j = 0; j < N_ELEMENTS(n_threads); j++) check_call(n_tasks[i], n_threads[j], 0);
    check_call(1000000, 3, 0);
    check_call(1000000, 64, 0);
    for (int i = 0; i < 2000; i++) check_call(i % 5, 2 + i % 3, 0);
    CHECK(fa_pool_n_workers() == 63);
}

static void test_single_thread_starts_no_worker(void) {
    check_call(100, 1, 0);
    check_call(1, 64, 0);
    check_call(0, 64, 0);
    CHECK(fa_pool_n_workers() == 0);
}

/* Task 0 waits until task 1 has begun, so this ends only if two threads take part. */
static void meet_task(void *ctx, int64_t i, fa_worker *worker) {
    fa_atomic32 *n_begun = ctx;
    (void)i, (void)worker;
    fa_add(n_begun, 1);
    for (int64_t end = fa_now_ns() + 10000 * MS; fa_load(n_begun) < 2 && fa_now_ns() < end;) nap(1);
}

static void check_help_comes(void) {
    fa_atomic32 n_begun = {0};
    CHECK(fa_pool_run(2, meet_task, &n_begun, 2, NULL) == FA_OK);
    CHECK(fa_load(&n_begun) == 2 && fa_pool_n_workers() >= 1);
}

static void test_workers_help_awake_and_asleep(void) {
    for (int i = 0; i < 200; i++) check_help_comes();
    for (int i = 0; i < 5; i++) {
        nap(5);
        check_help_comes();
    }
}

static void deep(int depth) {
    volatile char frame[512];
    frame[0] = frame[511] = (char)depth;
    if (depth > 0) deep(depth - 1);
    frame[1] = frame[0];
}

static void worker_task(void *ctx, int64_t i, fa_worker *worker) {
    fa_atomic32 *n_seen = ctx;
    sigset_t mask;
    (void)i;
    deep(256);
    if (fa_worker_slot(worker) == 0) {
        for (int64_t end = fa_now_ns() + 10000 * MS; !fa_load(n_seen) && fa_now_ns() < end;) nap(1);
        return;
    }
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    CHECK(sigismember(&mask, SIGINT) && sigismember(&mask, SIGTERM) && sigismember(&mask, SIGALRM));
    CHECK(sigismember(&mask, SIGUSR1) && sigismember(&mask, SIGCHLD) &&
          sigismember(&mask, SIGPROF));
    fa_add(n_seen, 1);
}

static void test_workers_block_signals_and_have_a_stack(void) {
    fa_atomic32 n_seen = {0};
    sigset_t mask;
    CHECK(fa_pool_run(16, worker_task, &n_seen, 4, NULL) == FA_OK);
    CHECK(fa_load(&n_seen) > 0);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    CHECK(!sigismember(&mask, SIGINT) && !sigismember(&mask, SIGUSR1));
}

/* ---- Many callers ---- */

static fa_atomic32 callers_stop;

static void *caller_main(void *arg) {
    unsigned seed = 12345u + (unsigned)(size_t)arg;
    for (int i = 0; i < 150; i++) {
        seed = seed * 1664525u + 1013904223u;
        check_call(seed >> 8 & 31, 1 + (int)(seed >> 16 & 7), (seed >> 24 & 3) * 2000);
    }
    return NULL;
}

static void *endless_caller_main(void *arg) {
    for (size_t i = (size_t)arg; !fa_load(&callers_stop); i++) check_call(20, 2 + i % 6, 20000);
    return NULL;
}

static void start(pthread_t *threads, int n, void *(*body)(void *)) {
    for (int i = 0; i < n; i++) CHECK(!pthread_create(&threads[i], NULL, body, (void *)(size_t)i));
}

static void join(pthread_t *threads, int n) {
    for (int i = 0; i < n; i++) CHECK(!pthread_join(threads[i], NULL));
}

static int count_threads(const char *name) {
    int n = 0;
#ifdef __linux__
    char path[300], comm[32];
    DIR *dir = opendir("/proc/self/task");
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
        FILE *f = fopen(path, "r");
        if (f && fgets(comm, sizeof comm, f) && !strncmp(comm, name, strlen(name))) n++;
        if (f) fclose(f);
    }
    if (dir) closedir(dir);
#else
    (void)name;
#endif
    return n;
}

/* The kernel takes a moment to forget a thread that was joined. */
static void await_threads(const char *name, int n) {
    for (int i = 0; i < 2000 && count_threads(name) != n; i++) nap(1);
    CHECK(count_threads(name) == n);
}

static void test_callers_share_the_workers(void) {
    pthread_t threads[40]; /* more than the board has places */
    start(threads, 40, caller_main);
    for (int i = 0; i < 20; i++) {
        CHECK(count_threads("fastattn") <= 7 && fa_pool_n_workers() <= 7);
        nap(2);
    }
    join(threads, 40);
    CHECK(fa_pool_n_workers() == 7);
}

/* ---- Fork ---- */

static void child_calls(void) {
    CHECK(fa_pool_n_workers() == 0);
    check_help_comes();
    check_call(100, 4, 0);
    CHECK(fa_pool_n_workers() == 3);
}

static void child_calls_from_threads(void) {
    pthread_t threads[4];
    start(threads, 4, caller_main);
    join(threads, 4);
    fa_pool_shutdown();
    child_calls();
}

static void child_has_child(void) {
    CHECK(in_child(child_calls) == 0); /* before and after it has its own pool */
    check_help_comes();
    CHECK(in_child(child_calls) == 0);
    check_call(100, 4, 0);
}

static void child_shuts_down(void) {
    fa_pool_shutdown();
    child_calls();
    fa_pool_shutdown();
    CHECK(fa_pool_n_workers() == 0);
}

static void child_does_nothing(void) {}

static void test_fork_while_idle(void) {
    check_help_comes();
    CHECK(in_child(child_does_nothing) == 0);
    CHECK(in_child(child_calls) == 0);
    CHECK(in_child(child_has_child) == 0);
    CHECK(in_child(child_shuts_down) == 0);
    nap(5);
    CHECK(in_child(child_calls_from_threads) == 0);
    check_help_comes();
}

static void *shutdown_main(void *arg) {
    (void)arg;
    while (!fa_load(&callers_stop)) {
        fa_pool_shutdown();
        nap(1);
    }
    return NULL;
}

/* The other threads call all the time, start and end workers (so they often hold the mutex). */
static void test_fork_while_calls_run(void) {
    pthread_t threads[4];
    fa_store(&callers_stop, 0);
    start(threads, 3, endless_caller_main);
    start(threads + 3, 1, shutdown_main);
    for (int i = 0; i < 40; i++) {
        CHECK(in_child(i % 4 ? child_calls : child_has_child) == 0);
        check_call(20, 4, 0);
    }
    fa_store(&callers_stop, 1);
    join(threads, 4);
}

static pid_t callback_pid; /* of the child; 0 in the child; -1 before */
static int child_calls_in_callback;

static int forking_callback(void) {
    if (callback_pid >= 0) return 0;
    callback_pid = fork();
    if (callback_pid == 0) alarm(30);
    if (callback_pid == 0 && child_calls_in_callback) child_calls();
    return 0;
}

static void long_task(void *ctx, int64_t i, fa_worker *worker) {
    (void)ctx, (void)i;
    for (int64_t end = fa_now_ns() + 150 * MS; fa_now_ns() < end && !fa_pool_poll(worker);)
        busy(MS);
}

static void test_fork_by_the_callback(void) {
    for (int i = 0; i < 2; i++) {
        callback_pid = -1;
        child_calls_in_callback = i;
        int status = fa_pool_run(4, long_task, NULL, 2, forking_callback);
        if (callback_pid == 0) {
            CHECK(status == FA_INTERRUPTED); /* the parent's workers did not come along */
            child_calls_in_callback ? check_help_comes() : child_calls();
            _exit(0);
        }
        CHECK(status == FA_OK && callback_pid > 0);
        CHECK(waitpid(callback_pid, &status, 0) > 0 && status == 0);
    }
}

/* As by a bare system call, or at the instant before the handler is known. */
static void test_fork_without_handlers(void) {
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 34)
    check_help_comes();
    int status;
    pid_t pid = _Fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        alarm(30);
        child_calls();
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) > 0 && status == 0);
#endif
}

/* ---- Threads refused ---- */

static void limit_threads(rlim_t n) {
    struct rlimit limit;
    CHECK(!getrlimit(RLIMIT_NPROC, &limit));
    limit.rlim_cur = n < limit.rlim_max ? n : limit.rlim_max;
    CHECK(!setrlimit(RLIMIT_NPROC, &limit));
}

static void child_is_refused_threads(void) {
    /* Root has no limit; the other user has no other process, a sanitizer may have a thread. */
    if (getuid() == 0) CHECK(!setuid(54321));
    int n_before = count_threads("");
    limit_threads(0);
    for (int i = 0; i < 3; i++) check_call(100, 8, 0);
    CHECK(fa_pool_n_workers() == 0);
    limit_threads(RLIM_INFINITY);
    check_call(100, 8, 0);
    CHECK(fa_pool_n_workers() == 0); /* not tried again in every call */
    nap(1100);
    check_call(100, 8, 0);
    CHECK(fa_pool_n_workers() == 7);
    fa_pool_shutdown();

    await_threads("", n_before);
    nap(10);
    limit_threads((rlim_t)n_before + 2);
    check_call(100, 8, 0);
    CHECK(fa_pool_n_workers() < 7); /* 2, unless an emulator has threads of its own */
    if (fa_pool_n_workers() > 0) check_help_comes();
}

static void test_refused_threads_mean_fewer_threads(void) {
    fa_pool_shutdown();
    CHECK(in_child(child_is_refused_threads) == 0);
}

/* ---- Interrupts ---- */

static pthread_t main_thread;
static fa_atomic32 n_asked, answer_from;
static int64_t asked_ns[64];

static int interrupt_callback(void) {
    CHECK(pthread_equal(main_thread, pthread_self()));
    int n = fa_add(&n_asked, 1);
    if (n < N_ELEMENTS(asked_ns)) asked_ns[n] = fa_now_ns();
    return n + 1 >= fa_load(&answer_from);
}

static void ask_from(int n) {
    main_thread = pthread_self();
    fa_store(&n_asked, 0);
    fa_store(&answer_from, n);
}

static void endless_task(void *ctx, int64_t i, fa_worker *worker) {
    (void)ctx, (void)i;
    while (!fa_pool_poll(worker)) busy(MS);
}

static void short_task(void *ctx, int64_t i, fa_worker *worker) {
    (void)ctx, (void)i, (void)worker;
    busy(MS / 10);
}

/* Endless on workers only, so that the caller waits for them. */
static void tail_task(void *ctx, int64_t i, fa_worker *worker) {
    fa_atomic32 *n_inside = ctx;
    if (fa_worker_slot(worker) == 0) {
        while (!fa_load(n_inside)) nap(1);
        return;
    }
    fa_add(n_inside, 1);
    endless_task(NULL, i, worker);
}

static void check_interrupt(int64_t n_tasks, fa_task_fn fn, int n_threads, int n_asks) {
    fa_atomic32 ctx = {0};
    int64_t begin = fa_now_ns();
    ask_from(n_asks);
    CHECK(fa_pool_run(n_tasks, fn, &ctx, n_threads, interrupt_callback) == FA_INTERRUPTED);
    int64_t took = fa_now_ns() - begin;
    CHECK(fa_load(&n_asked) == n_asks && took >= 50 * MS * n_asks && took < 5000 * MS);
    for (int i = 1; i < n_asks; i++) CHECK(asked_ns[i] - asked_ns[i - 1] >= 50 * MS);
}

static void test_interrupt_stops_all(void) {
    check_interrupt(1, endless_task, 1, 1);
    check_interrupt(2, endless_task, 2, 2);
    check_interrupt(100, endless_task, 4, 2);
    check_interrupt((int64_t)1 << 60, short_task, 1, 2);
    check_interrupt((int64_t)1 << 60, short_task, 8, 2);
    check_interrupt(2, tail_task, 2, 2);
    check_help_comes();

    ask_from(1000); /* not asked by short calls, nor answered with yes by long ones */
    for (int i = 0; i < 100; i++) {
        int64_t begin = fa_now_ns();
        CHECK(fa_pool_run(4, short_task, NULL, 2, interrupt_callback) == FA_OK);
        if (fa_now_ns() - begin < 50 * MS) CHECK(fa_load(&n_asked) == 0);
        fa_store(&n_asked, 0);
    }
    CHECK(fa_pool_run(4, long_task, NULL, 2, interrupt_callback) == FA_OK);
    CHECK(fa_load(&n_asked) > 0);
}

/* ---- Shutdown, idleness, exit ---- */

static void test_shutdown_and_restart(void) {
    fa_pool_shutdown(); /* of nothing */
    for (int i = 0; i < 20; i++) {
        check_call(100, 4, 0);
        CHECK(fa_pool_n_workers() == 3);
        if (i % 2) nap(2);
        fa_pool_shutdown();
        CHECK(fa_pool_n_workers() == 0);
        await_threads("fastattn", 0);
    }
    fa_pool_shutdown();

    pthread_t threads[6];
    fa_store(&callers_stop, 0);
    start(threads, 4, endless_caller_main); /* each checks that its calls are complete */
    start(threads + 4, 2, shutdown_main);
    nap(300);
    fa_store(&callers_stop, 1);
    join(threads, 6);
    await_threads("fastattn", fa_pool_n_workers()); /* none forgotten */
    check_help_comes();
}

static int64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void test_idle_workers_use_no_cpu(void) {
    check_call(1000, 16, 0);
    nap(20);
    int64_t begin = cpu_ns();
    nap(500);
    CHECK(cpu_ns() - begin < 5 * MS); /* 1 % of a core, sanitizers' own threads included */
}

static void child_exits_in_calls(void) {
    pthread_t threads[4];
    fa_store(&callers_stop, 0);
    start(threads, 4, endless_caller_main);
    nap(5);
    exit(7);
}

static void child_exits_idle(void) {
    check_help_comes();
    exit(7);
}

static void child_calls_at_exit(void) {
    check_help_comes();
    CHECK(!atexit(check_help_comes) && !atexit(fa_pool_shutdown));
    exit(7);
}

static void child_is_killed(void) {
    check_help_comes();
    kill(getpid(), SIGTERM);
    nap(5000);
}

static void test_exit_never_hangs(void) {
    fa_pool_shutdown(); /* a fork of many threads is beyond TSan */
    int64_t begin = fa_now_ns();
    for (int i = 0; i < 10; i++) {
        CHECK(in_child(child_exits_in_calls) == 7);
        CHECK(in_child(child_exits_idle) == 7);
        CHECK(in_child(child_calls_at_exit) == 7);
        CHECK(in_child(child_is_killed) == -SIGTERM);
    }
    CHECK(fa_now_ns() - begin < 20000 * MS);
}

/* ---- Floating point ---- */

static volatile float tiny = 1e-38f, one = 1.0f, three = 3.0f, zero = 0.0f;

#if defined(__SSE2_MATH__)
#define HAS_CONTROL 1
static unsigned get_control(void) { return _mm_getcsr(); }
/* Subnormals flushed, rounding to zero, division by zero traps, the inexact flag is up. */
static void set_odd_control(void) { _mm_setcsr(0xfde0u); }
#elif defined(__aarch64__)
#define HAS_CONTROL 1
static unsigned get_control(void) {
    uint64_t r;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(r));
    return (unsigned)r;
}
static void set_odd_control(void) {
    __asm__ __volatile__("msr fpcr, %0" : : "r"((uint64_t)3 << 22 | 1 << 24)); /* to zero, FZ */
}
#else
#define HAS_CONTROL 0
static unsigned get_control(void) { return 0; }
static void set_odd_control(void) {}
#endif

static void float_task(void *ctx, int64_t i, fa_worker *worker) {
    (void)i, (void)worker;
    CHECK(tiny / 4 > 0);            /* subnormals kept */
    CHECK(one / three * 3 == 1.0f); /* to nearest; to zero it is below 1 */
    CHECK(one / zero > 1e38f);      /* no trap, and no flag for the caller */
    fa_add((fa_atomic32 *)ctx, 1);
    busy(50000);
}

static void spoil_task(void *ctx, int64_t i, fa_worker *worker) {
    set_odd_control(); /* no task should, but then it harms no other call */
    meet_task(ctx, i, worker);
}

static void check_float(void) {
    fa_atomic32 n = {0};
    for (int n_threads = 1; n_threads <= 4; n_threads++)
        CHECK(fa_pool_run(64, float_task, &n, n_threads, NULL) == FA_OK);
    CHECK(fa_load(&n) == 4 * 64);
}

static unsigned callback_control;
static int control_callback(void) {
    callback_control = get_control();
    return 0;
}

static void test_tasks_run_in_the_default_environment(void) {
    fa_fpenv env = fa_fpenv_enter();
    unsigned plain = get_control();
    check_float();
    CHECK(get_control() == plain); /* the division by zero left no flag */

    fa_pool_shutdown(); /* new workers inherit the odd environment */
    set_odd_control();
    unsigned odd = get_control();
    check_float();
    CHECK(get_control() == odd);
    CHECK(fa_pool_run(4, long_task, NULL, 2, control_callback) == FA_OK);
    CHECK(get_control() == odd && callback_control == odd);
    CHECK(!HAS_CONTROL || odd != plain);
    fa_fpenv_leave(&env);

    fa_atomic32 n_begun = {0};
    CHECK(fa_pool_run(2, spoil_task, &n_begun, 2, NULL) == FA_OK);
    check_float();
}

/* ---- Scratch ---- */

static void *scratch_main(void *arg) {
    unsigned seed = 777u + (unsigned)(size_t)arg;
    for (int i = 0; i < 1000; i++) {
        seed = seed * 1664525u + 1013904223u;
        size_t bytes = (seed >> 8) % ((size_t)1 << (seed >> 27) % 24);
        unsigned char *p = fa_scratch_take(bytes), mark = (unsigned char)seed;
        if (bytes > 100000) bytes = 100000; /* marked; the rest is left alone */
        CHECK(p && (size_t)p % FA_ALIGN == 0);
        memset(p, mark, bytes);
        if (i % 16 == 0) sched_yield();
        for (size_t j = 0; j < bytes; j += 97) CHECK(p[j] == mark);
        fa_scratch_give(p);
    }
    return NULL;
}

static void test_scratch(void) {
    static const size_t sizes[] = {0, 1, 63, 4096, 4097, 1 << 20, (1 << 20) + 1, 5 << 20, 65 << 20};
    void *blocks[40];
    for (int i = 0; i < N_ELEMENTS(sizes); i++) {
        unsigned char *p = fa_scratch_take(sizes[i]);
        CHECK(p && (size_t)p % FA_ALIGN == 0);
        if (sizes[i]) p[0] = p[sizes[i] - 1] = 1;
        fa_scratch_give(p);
        void *q = fa_scratch_take(sizes[i]);
        if (sizes[i] <= (size_t)64 << 20) CHECK(q == p); /* came from the cache */
        fa_scratch_give(q);
    }
    CHECK(!fa_scratch_take(SIZE_MAX) && !fa_scratch_take(SIZE_MAX - 4096));
    CHECK(!fa_scratch_take(SIZE_MAX / 2));
    fa_scratch_give(NULL);
    for (int i = 0; i < 40; i++) { /* more than the cache has slots; all different */
        CHECK((blocks[i] = fa_scratch_take(1000)));
        memset(blocks[i], i, 1000);
    }
    for (int i = 0; i < 40; i++) {
        CHECK(((unsigned char *)blocks[i])[999] == i);
        fa_scratch_give(blocks[i]);
    }
    pthread_t threads[4];
    start(threads, 4, scratch_main);
    join(threads, 4);
}

/* ---- CPU ---- */

static void test_cpu_decode(void) {
    enum { AVX2 = FA_CPU_FMA | FA_CPU_F16C | FA_CPU_AVX2, ALL = AVX2 | FA_CPU_AVX512 };
    const uint32_t ecx = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29;
    const uint32_t avx512 = 1u << 5 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    const struct {
        fa_cpu_raw raw;
        int bits;
    } cases[] = {
        {{0, 0, 0, 0}, 0},
        {{22, ecx, avx512, 0xe7}, ALL},
        {{22, ~0u, ~0u, ~(uint64_t)0}, ALL},
        {{13, ecx, 1u << 5, 0x07}, AVX2},
        {{22, ecx, avx512, 0x07}, AVX2},            /* the system saves ymm only */
        {{22, ecx, avx512, 0x67}, AVX2},            /* not zmm16-31 */
        {{22, ecx, avx512, 0xe3}, 0},               /* not ymm */
        {{22, ecx, avx512, 0x03}, 0},               /* only SSE */
        {{22, ecx & ~(1u << 27), avx512, 0xe7}, 0}, /* no XGETBV: xcr0 means nothing */
        {{22, ecx & ~(1u << 28), avx512, 0xe7}, 0}, /* hypervisor hides AVX */
        {{22, ecx & ~(1u << 12), avx512, 0xe7}, ALL & ~FA_CPU_FMA},
        {{22, ecx & ~(1u << 29), avx512, 0xe7}, ALL & ~FA_CPU_F16C},
        {{22, ecx, avx512 & ~(1u << 5), 0xe7}, FA_CPU_FMA | FA_CPU_F16C},
        {{22, ecx, avx512 & ~(1u << 16), 0xe7}, AVX2},
        {{22, ecx, avx512 & ~(1u << 17), 0xe7}, AVX2},
        {{22, ecx, avx512 & ~(1u << 30), 0xe7}, AVX2},
        {{22, ecx, avx512 & ~(1u << 31), 0xe7}, AVX2},
        {{6, ecx, avx512, 0xe7}, FA_CPU_FMA | FA_CPU_F16C}, /* leaf 7 does not exist */
    };
    for (int i = 0; i < N_ELEMENTS(cases); i++)
        CHECK(fa_cpu_decode(&cases[i].raw) == cases[i].bits);

    CHECK(fa_cpu_features() == fa_cpu_features());
#if defined(__linux__) && defined(__x86_64__) /* the kernel's own view */
    static char flags[8192];
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(flags, sizeof flags, f) && strncmp(flags, "flags", 5)) {
    }
    if (f) fclose(f);
    int f_bw_dq_vl = strstr(flags, " avx512f ") && strstr(flags, " avx512bw ") &&
                     strstr(flags, " avx512dq ") && strstr(flags, " avx512vl ");
    CHECK(!(fa_cpu_features() & FA_CPU_FMA) == !strstr(flags, " fma "));
    CHECK(!(fa_cpu_features() & FA_CPU_F16C) == !strstr(flags, " f16c "));
    CHECK(!(fa_cpu_features() & FA_CPU_AVX2) == !strstr(flags, " avx2 "));
    CHECK(!(fa_cpu_features() & FA_CPU_AVX512) == !f_bw_dq_vl);
#endif
    char buf[64];
    CHECK(fa_cpu_feature_names(AVX2, buf, sizeof buf) == 13 && !strcmp(buf, "fma f16c avx2"));
    CHECK(fa_cpu_feature_names(0, buf, sizeof buf) == 0 && !strcmp(buf, ""));
    CHECK(fa_cpu_feature_names(AVX2, buf, 6) == 13 && !strcmp(buf, "fma f"));
    CHECK(fa_cpu_feature_names(ALL, NULL, 0) == 20);
}

typedef struct test {
    const char *name;
    void (*run)(void);
} test;
#define TEST(name) \
    { #name, test_##name }

static const test tests[] = {
    TEST(single_thread_starts_no_worker), /* first: the pool is untouched */
    TEST(cpu_decode),
    TEST(scratch),
    TEST(callers_share_the_workers), /* the pool has no more than 7 workers yet */
    TEST(workers_help_awake_and_asleep),
    TEST(workers_block_signals_and_have_a_stack),
    TEST(tasks_run_in_the_default_environment),
    TEST(every_index_runs_once),
    TEST(interrupt_stops_all),
    TEST(shutdown_and_restart),
    TEST(idle_workers_use_no_cpu),
    TEST(exit_never_hangs),
    TEST(refused_threads_mean_fewer_threads),
    TEST(fork_while_idle),
    TEST(fork_while_calls_run),
    TEST(fork_by_the_callback),
    TEST(fork_without_handlers),
};

int main(int argc, char **argv) {
    for (int i = 0; i < N_ELEMENTS(tests); i++) {
        if (argc > 1 && strcmp(argv[1], tests[i].name)) continue;
        /* TSan cannot start threads in the child of a process with threads. */
        if (HAS_TSAN && !strncmp(tests[i].name, "fork", 4)) continue;
        /* ASan's allocator may be locked by another thread at the fork: its child hangs in free(). */
        if (HAS_ASAN && !strcmp(tests[i].name, "fork_while_calls_run")) continue;
        int64_t begin = fa_now_ns();
        alarm(120);
        tests[i].run();
        printf("ok %-48s %6.2f s\n", tests[i].name, (double)(fa_now_ns() - begin) * 1e-9);
        fflush(stdout);
    }
    return 0;
}
