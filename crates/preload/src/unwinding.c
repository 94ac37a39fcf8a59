/* The unwinder is libgcc's. To load its library takes a process longer than to load ours, and hardly any has anything to unwind: so it is loaded when a
 * thread is cancelled in a call of ours, or a call of ours panics. These stand in its functions' place, for us alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#pragma GCC visibility push(hidden)

/* By then libc has loaded it, if it is a cancellation: also where the program has no dlopen() (before glibc 2.34). */
static void *function(const char *name) {
    void *library = dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_LOCAL);
    void *found = dlsym(library ? library : RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

/* Of several threads that look for one, each finds the same. */
#define UNWINDS_AS(own, result, name, parameters, ...)                                            \
    result own parameters {                                                                       \
        static void *known;                                                                       \
        void *it = __atomic_load_n(&known, __ATOMIC_ACQUIRE);                                     \
        if (!it) __atomic_store_n(&known, it = function(#name), __ATOMIC_RELEASE);                \
        return ((result(*) parameters)it)(__VA_ARGS__);                                           \
    }
#define UNWINDS(result, name, ...) UNWINDS_AS(name, result, name, __VA_ARGS__)

UNWINDS(int, _Unwind_Backtrace, (void *trace, void *argument), trace, argument)
UNWINDS(void, _Unwind_DeleteException, (void *exception), exception)
UNWINDS(uintptr_t, _Unwind_GetDataRelBase, (void *context), context)
UNWINDS(uintptr_t, _Unwind_GetIP, (void *context), context)
UNWINDS(uintptr_t, _Unwind_GetIPInfo, (void *context, int *before), context, before)
static UNWINDS_AS(landing_pads, uintptr_t, _Unwind_GetLanguageSpecificData, (void *context), context)

/* A function that a signal has interrupted, by which its thread is cancelled (PTHREAD_CANCEL_ASYNCHRONOUS), is in no call: what Rust's tables say of the place
 * is that nothing unwinds there, or what is to be done in the call before or behind it. Its callers' landing pads are right. */
uintptr_t _Unwind_GetLanguageSpecificData(void *context) {
    int interrupted = 0;
    _Unwind_GetIPInfo(context, &interrupted);
    return interrupted ? 0 : landing_pads(context);
}

UNWINDS(uintptr_t, _Unwind_GetRegionStart, (void *context), context)
UNWINDS(uintptr_t, _Unwind_GetTextRelBase, (void *context), context)
UNWINDS(int, _Unwind_RaiseException, (void *exception), exception)
UNWINDS(void, _Unwind_Resume, (void *exception), exception)
UNWINDS(void, _Unwind_SetGR, (void *context, int index, uintptr_t value), context, index, value)
UNWINDS(void, _Unwind_SetIP, (void *context, uintptr_t value), context, value)

#pragma GCC visibility pop
