/* SPDX-License-Identifier: MIT
 * What the pool needs of the operating system: threads, a mutex, a condition, a clock, fork.
 * Used by pool.c alone.  Only this header and thread.c know pthread and Win32.  No policy here. */
#ifndef FA_THREAD_H
#define FA_THREAD_H

#include "base/base.h"

#ifdef _WIN32
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
typedef SRWLOCK fa_mutex;
typedef CONDITION_VARIABLE fa_cond;
typedef HANDLE fa_thread;
typedef unsigned fa_thread_result;
#define FA_THREAD_CALL __stdcall
#else
#include <pthread.h>
typedef pthread_mutex_t fa_mutex;
typedef pthread_cond_t fa_cond;
typedef pthread_t fa_thread;
typedef void *fa_thread_result;
#define FA_THREAD_CALL
#endif

/* A thread's body is `static fa_thread_result FA_THREAD_CALL name(void *arg)`; it returns 0. */
typedef fa_thread_result(FA_THREAD_CALL *fa_thread_fn)(void *arg);

/* Init may be repeated on memory in any state, even locked or waited on by threads that a fork did
 * not copy.  Nothing is ever destroyed: these objects are static and hold no resources. */
void fa_mutex_init(fa_mutex *mutex);
void fa_mutex_lock(fa_mutex *mutex);
void fa_mutex_unlock(fa_mutex *mutex);
void fa_cond_init(fa_cond *cond);
void fa_cond_signal(fa_cond *cond);
void fa_cond_broadcast(fa_cond *cond);

/* Waits for a signal, for timeout_ms (< 0: for ever), or for no reason at all.  The timeout is
 * approximate and may follow the wall clock: use it to look again, not to measure. */
void fa_cond_wait(fa_cond *cond, fa_mutex *mutex, int timeout_ms);

/* Starts a thread with a stack of FA_THREAD_STACK_BYTES, every signal blocked, and the name
 * "fastattn".  Returns 0, with *thread undefined, when the system refuses.  Every started thread
 * must be joined once, by the process that started it, or be running when the process ends. */
int fa_thread_start(fa_thread *thread, fa_thread_fn fn, void *arg);
void fa_thread_join(fa_thread thread);

/* Ample for frames of at most 8 KiB, and for the thread-local variables of all libraries in the
 * process, which glibc places here too.  Reserved, not committed. */
#define FA_THREAD_STACK_BYTES (1024 * 1024)

/* Has child() called in every forked child from now on, descendants included. */
void fa_thread_at_fork(void (*child)(void));

/* Positive, and changes across a fork; always 1 where there is no fork. */
int32_t fa_process_id(void);

/* Monotonic time. */
int64_t fa_now_ns(void);

#endif
