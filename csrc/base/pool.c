/* SPDX-License-Identifier: MIT
 * The thread pool: a board of calls in flight, and workers that look there for work.
 * Used by ops/ through pool.h.  It allocates nothing, has no thread-local state, never runs Python.
 *
 * A call is a `job` on its caller's stack.  The caller posts it on a free place of the board, works
 * on it itself, closes it, and returns when no worker is inside.  A worker looks for the open job
 * with the fewest workers inside, enters by one compare-and-swap on that place, works until the
 * tasks run out, and leaves by one subtraction, after which it touches nothing of the call.  A
 * worker that finds no open job spins for a moment and then sleeps.  So the mutex is taken only to
 * sleep, to wake a sleeper, and to start or end workers; a call that finds its workers awake never
 * sees it. */
#include "base/pool.h"

#include "base/atomic.h"
#include "base/fpenv.h"
#include "base/thread.h"
#include "base/types.h"

enum {
    MAX_WORKERS = 1023,
    BOARD_SIZE = 32,     /* further calls at the same time run on their callers alone */
    SPIN_NS = 30 * 1000, /* longer than from one small call to the next; about a wake-up's cost */
    ASK_MS = 50,         /* between two questions to `interrupted` */
    RETRY_MS = 1000      /* after the system refused a thread */
};

#define NS_PER_MS ((int64_t)1000000)

/* The state of a place: 0 when free, else the sum of these. */
enum {
    OPEN_MASK = 0xfff, /* how many more workers may enter: each takes one, for good */
    ONE_INSIDE = 0x1000,
    INSIDE_MASK = 0xfff000, /* how many workers are inside */
    TAKEN = 1 << 24,        /* by a caller */
    AWAITED = 1 << 25       /* the caller sleeps until nobody is inside */
};

typedef struct job job;

typedef struct place {
    fa_atomic32 state;
    job *job; /* written by the owner before it opens the place; read only from inside */
} place;

struct job {
    fa_task_fn fn;
    void *ctx;
    int64_t n_tasks;
    fa_atomic32 stop; /* the call is being given up */
    /* The rest of this line is the caller's alone. */
    place *place; /* NULL: not on the board */
    int (*interrupted)(void);
    int64_t ask_ns; /* when to call it next */
    int32_t process_id;
    fa_fpenv env;
    _Alignas(FA_ALIGN) fa_atomic64 next; /* the next task to be begun; written by all */
};

struct fa_worker {
    job *job;
    int slot;
};

static struct {
    _Alignas(FA_ALIGN) fa_atomic32 n_posted; /* jobs and shutdowns so far; idle workers watch it */
    _Alignas(FA_ALIGN) place board[BOARD_SIZE];
    fa_atomic32 owner; /* whose pool this is: a process id, or -id while it prepares it, or 0 */
    fa_atomic32 has_fork_handler;
    fa_atomic32 n_asleep;
    /* Written under the mutex alone. */
    fa_atomic32 n_workers;
    fa_atomic32 is_closing; /* a shutdown is under way */
    int64_t retry_ns;       /* no attempt to start a thread before this time */
    fa_mutex mutex;
    fa_cond work_came; /* for workers */
    fa_cond work_done; /* for callers of fa_pool_run and of fa_pool_shutdown */
    fa_thread threads[MAX_WORKERS];
} pool;

/* ---- Processes ---- */

static void forget_owner(void) { fa_store(&pool.owner, 0); }

/* Makes the pool usable in this process and returns the process id; or returns 0, when another
 * thread is just doing so, and the caller works alone.
 *
 * A forked child has a copy of a pool without its threads, caught in any state.  The process id
 * tells, for a fork at any moment and by whatever function; the fork handler only covers a child
 * that is given the id of a dead ancestor.  Since -id names the process that prepares, a fork in
 * the middle of that does not leave the child waiting for it. */
static int32_t own_pool(void) {
    int32_t me = fa_process_id(), owner = fa_load(&pool.owner);
    if (owner == me) return me;
    if (owner == -me || !fa_cas(&pool.owner, owner, -me)) return 0;
    if (!fa_load(&pool.has_fork_handler)) {
        fa_thread_at_fork(forget_owner);
        fa_store(&pool.has_fork_handler, 1);
    }
    for (int i = 0; i < BOARD_SIZE; i++) fa_store(&pool.board[i].state, 0);
    fa_store(&pool.n_asleep, 0);
    fa_store(&pool.n_workers, 0);
    fa_store(&pool.is_closing, 0);
    pool.retry_ns = 0;
    fa_mutex_init(&pool.mutex);
    fa_cond_init(&pool.work_came);
    fa_cond_init(&pool.work_done);
    fa_store(&pool.owner, me);
    return me;
}

/* ---- Tasks ---- */

int fa_worker_slot(const fa_worker *worker) { return worker->slot; }

static void ask(job *j) {
    if (fa_now_ns() < j->ask_ns) return;
    fa_fpenv_leave(&j->env); /* Python code may run: in the environment that it chose */
    int stop = j->interrupted();
    j->env = fa_fpenv_enter();
    j->ask_ns = fa_now_ns() + ASK_MS * NS_PER_MS;
    if (j->place && fa_process_id() != j->process_id) {
        /* `interrupted` forked, and this is the child: workers and their tasks stayed behind. */
        j->place = NULL;
        stop = 1;
    }
    if (stop) fa_store(&j->stop, 1);
}

int fa_pool_poll(fa_worker *worker) {
    job *j = worker->job;
    if (worker->slot == 0 && j->interrupted && !fa_load_relaxed(&j->stop)) ask(j);
    return fa_load_relaxed(&j->stop);
}

static void work(fa_worker *self) {
    job *j = self->job;
    while (self->slot == 0 || !fa_load_relaxed(&pool.is_closing)) {
        int64_t i = fa_add64_relaxed(&j->next, 1);
        if (i >= j->n_tasks) return;
        j->fn(j->ctx, i, self);
        if (fa_pool_poll(self)) return;
    }
}

/* ---- Workers ---- */

static void spin(void) {
    for (int i = 0; i < 16; i++) fa_pause();
}

/* Wakes up to two sleepers, if n more workers are of use.  Each worker that enters a job does the
 * same, so they wake as a tree grows: a caller pays for two system calls, the last of n workers
 * waits for about log2(n) wake-ups. */
static void wake(int n) {
    n = fa_min(fa_min(n, 2), fa_load(&pool.n_asleep));
    if (n <= 0) return;
    fa_mutex_lock(&pool.mutex); /* who counted itself asleep is waiting now, or has seen n_posted */
    fa_mutex_unlock(&pool.mutex);
    for (int i = 0; i < n; i++) fa_cond_signal(&pool.work_came);
}

/* Enters the open job with the fewest workers inside and works on it; returns 0 if none is open. */
static int help(void) {
    place *best;
    int32_t best_state;
    int n_open;
    do {
        best = NULL, best_state = INSIDE_MASK, n_open = 0;
        for (place *p = pool.board; p < pool.board + BOARD_SIZE; p++) {
            int32_t state = fa_load(&p->state);
            if (!(state & OPEN_MASK)) continue;
            n_open += state & OPEN_MASK;
            if ((state & INSIDE_MASK) < (best_state & INSIDE_MASK)) best = p, best_state = state;
        }
        if (!best) return 0;
    } while (!fa_cas(&best->state, best_state, best_state - 1 + ONE_INSIDE));
    wake(n_open - 1);

    fa_worker self = {best->job, best_state & OPEN_MASK};
    fa_fpenv env = fa_fpenv_enter();
    work(&self);
    fa_fpenv_leave(&env);

    fa_and(&best->state, ~OPEN_MASK); /* nobody else is of use: no task is left, or no worker */
    int32_t state = fa_add(&best->state, -ONE_INSIDE);
    if ((state & AWAITED) && (state & INSIDE_MASK) == ONE_INSIDE) {
        fa_mutex_lock(&pool.mutex);
        fa_mutex_unlock(&pool.mutex);
        fa_cond_broadcast(&pool.work_done);
    }
    return 1;
}

static void sleep_until_posted(int32_t n_seen) {
    fa_mutex_lock(&pool.mutex);
    fa_add(&pool.n_asleep, 1); /* before the look at n_posted: see post() */
    while (fa_load(&pool.n_posted) == n_seen) fa_cond_wait(&pool.work_came, &pool.mutex, -1);
    fa_add(&pool.n_asleep, -1);
    fa_mutex_unlock(&pool.mutex);
}

static fa_thread_result FA_THREAD_CALL worker_main(void *unused) {
    (void)unused;
    int64_t awake_until = 0; /* only work prolongs it: a worker that no call needs does not spin */
    for (;;) {
        int32_t n_seen = fa_load(&pool.n_posted); /* before the look at the board */
        if (fa_load(&pool.is_closing)) return 0;
        if (help()) {
            awake_until = fa_now_ns() + SPIN_NS;
            continue;
        }
        while (fa_load(&pool.n_posted) == n_seen && fa_now_ns() < awake_until) spin();
        if (fa_load(&pool.n_posted) == n_seen) sleep_until_posted(n_seen);
    }
}

static void grow(int n_wanted) {
    n_wanted = fa_min(n_wanted, MAX_WORKERS);
    if (fa_load(&pool.n_workers) >= n_wanted) return;
    fa_mutex_lock(&pool.mutex);
    int n = fa_load(&pool.n_workers);
    if (!fa_load(&pool.is_closing) && n < n_wanted && fa_now_ns() >= pool.retry_ns) {
        while (n < n_wanted && fa_thread_start(&pool.threads[n], worker_main, NULL)) n++;
        if (n < n_wanted) pool.retry_ns = fa_now_ns() + RETRY_MS * NS_PER_MS;
        fa_store(&pool.n_workers, n);
    }
    fa_mutex_unlock(&pool.mutex);
}

int fa_pool_n_workers(void) {
    return fa_load(&pool.owner) == fa_process_id() ? fa_load(&pool.n_workers) : 0;
}

void fa_pool_shutdown(void) {
    if (fa_load(&pool.owner) != fa_process_id()) return;
    fa_mutex_lock(&pool.mutex);
    while (fa_load(&pool.is_closing)) fa_cond_wait(&pool.work_done, &pool.mutex, -1);
    int n = fa_load(&pool.n_workers);
    fa_store(&pool.is_closing, 1);
    fa_add(&pool.n_posted, 1);
    fa_mutex_unlock(&pool.mutex);
    fa_cond_broadcast(&pool.work_came);

    for (int i = 0; i < n; i++) fa_thread_join(pool.threads[i]);

    fa_mutex_lock(&pool.mutex);
    fa_store(&pool.n_workers, 0);
    fa_store(&pool.is_closing, 0);
    fa_mutex_unlock(&pool.mutex);
    fa_cond_broadcast(&pool.work_done);
}

/* ---- Callers ---- */

/* Puts the job on the board, if a place is free.  n_posted changes before wake() looks at n_asleep;
 * a worker that goes to sleep does it the other way round, so one of the two sees the other. */
static void post(job *j, int n_open) {
    for (place *p = pool.board; p < pool.board + BOARD_SIZE; p++) {
        if (fa_load(&p->state) || !fa_cas(&p->state, 0, TAKEN)) continue;
        p->job = j;
        j->place = p;
        fa_store(&p->state, TAKEN + n_open);
        fa_add(&pool.n_posted, 1);
        return;
    }
}

/* Returns when no worker is inside any more, and frees the place. */
static void take_down(fa_worker *self) {
    place *p = self->job->place;
    if (fa_and(&p->state, ~OPEN_MASK) & INSIDE_MASK) {
        int64_t end = fa_now_ns() + SPIN_NS;
        while ((fa_load(&p->state) & INSIDE_MASK) && fa_now_ns() < end) spin();
    }
    if (fa_load(&p->state) & INSIDE_MASK) {
        fa_mutex_lock(&pool.mutex);
        fa_or(&p->state, AWAITED);
        while (fa_load(&p->state) & INSIDE_MASK) {
            fa_cond_wait(&pool.work_done, &pool.mutex, ASK_MS);
            fa_mutex_unlock(&pool.mutex);
            fa_pool_poll(self); /* may run Python, which may want to fork: not under the mutex */
            if (!self->job->place) return;
            fa_mutex_lock(&pool.mutex);
        }
        fa_mutex_unlock(&pool.mutex);
    }
    fa_store(&p->state, 0);
}

int fa_pool_run(int64_t n_tasks, fa_task_fn fn, void *ctx, int n_threads,
                int (*interrupted)(void)) {
    FA_ASSERT(n_tasks >= 0 && n_threads >= 1);
    job j = {.fn = fn, .ctx = ctx, .n_tasks = n_tasks, .interrupted = interrupted};
    fa_worker self = {&j, 0};
    int n_helpers = (int)fa_min64(fa_min64(n_tasks, n_threads) - 1, MAX_WORKERS);

    if (interrupted) j.ask_ns = fa_now_ns() + ASK_MS * NS_PER_MS;
    j.env = fa_fpenv_enter();
    if (n_helpers > 0 && (j.process_id = own_pool())) {
        grow(n_threads - 1);
        post(&j, n_helpers);
        wake(n_helpers);
    }
    work(&self);
    if (j.place) take_down(&self);
    fa_fpenv_leave(&j.env);
    return fa_load_relaxed(&j.stop) ? FA_INTERRUPTED : FA_OK;
}
