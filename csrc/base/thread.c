/* SPDX-License-Identifier: MIT
 * Threads, mutex, condition and clock over pthread and Win32; the contracts are in thread.h.
 * Used by pool.c.  No policy: who waits for what, and for how long, is decided there. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pthread_setname_np, clock_gettime */
#endif
#include "base/thread.h"

#ifdef _WIN32
#include <process.h>

void fa_mutex_init(fa_mutex *mutex) { InitializeSRWLock(mutex); }
void fa_mutex_lock(fa_mutex *mutex) { AcquireSRWLockExclusive(mutex); }
void fa_mutex_unlock(fa_mutex *mutex) { ReleaseSRWLockExclusive(mutex); }
void fa_cond_init(fa_cond *cond) { InitializeConditionVariable(cond); }
void fa_cond_signal(fa_cond *cond) { WakeConditionVariable(cond); }
void fa_cond_broadcast(fa_cond *cond) { WakeAllConditionVariable(cond); }

void fa_cond_wait(fa_cond *cond, fa_mutex *mutex, int timeout_ms) {
    SleepConditionVariableSRW(cond, mutex, timeout_ms < 0 ? INFINITE : (DWORD)timeout_ms, 0);
}

int fa_thread_start(fa_thread *thread, fa_thread_fn fn, void *arg) {
    *thread = (HANDLE)_beginthreadex(NULL, FA_THREAD_STACK_BYTES, fn, arg,
                                     STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
    return *thread != NULL;
}

void fa_thread_join(fa_thread thread) {
    WaitForSingleObject(thread, INFINITE);
    CloseHandle(thread);
}

void fa_thread_at_fork(void (*child)(void)) { (void)child; }
int32_t fa_process_id(void) { return 1; }

int64_t fa_now_ns(void) {
    LARGE_INTEGER count, frequency; /* whole seconds apart, so that the product cannot overflow */
    QueryPerformanceFrequency(&frequency);
    QueryPerformanceCounter(&count);
    return count.QuadPart / frequency.QuadPart * 1000000000 +
           count.QuadPart % frequency.QuadPart * 1000000000 / frequency.QuadPart;
}

#else
#include <signal.h>
#include <time.h>
#include <unistd.h>

void fa_mutex_init(fa_mutex *mutex) { pthread_mutex_init(mutex, NULL); }
void fa_mutex_lock(fa_mutex *mutex) { pthread_mutex_lock(mutex); }
void fa_mutex_unlock(fa_mutex *mutex) { pthread_mutex_unlock(mutex); }
void fa_cond_init(fa_cond *cond) { pthread_cond_init(cond, NULL); }
void fa_cond_signal(fa_cond *cond) { pthread_cond_signal(cond); }
void fa_cond_broadcast(fa_cond *cond) { pthread_cond_broadcast(cond); }

void fa_cond_wait(fa_cond *cond, fa_mutex *mutex, int timeout_ms) {
    if (timeout_ms < 0) {
        pthread_cond_wait(cond, mutex);
        return;
    }
    struct timespec until; /* macOS has no condition on the monotonic clock */
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += timeout_ms % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec += 1;
        until.tv_nsec -= 1000000000L;
    }
    pthread_cond_timedwait(cond, mutex, &until);
}

int fa_thread_start(fa_thread *thread, fa_thread_fn fn, void *arg) {
    pthread_attr_t attr;
    if (pthread_attr_init(&attr)) return 0;
    pthread_attr_setstacksize(&attr, FA_THREAD_STACK_BYTES);

    sigset_t all, before; /* a new thread inherits the mask of its creator */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, &attr, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);

    pthread_attr_destroy(&attr);
    /* Elsewhere only a thread itself may set its name, or there are none. */
#ifdef __linux__
    if (!failed) pthread_setname_np(*thread, "fastattn");
#endif
    return !failed;
}

void fa_thread_join(fa_thread thread) { pthread_join(thread, NULL); }
void fa_thread_at_fork(void (*child)(void)) { pthread_atfork(NULL, NULL, child); }
int32_t fa_process_id(void) { return (int32_t)getpid(); }

int64_t fa_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
