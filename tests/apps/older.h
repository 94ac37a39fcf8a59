/* What glibc has only lately, for an older one: included before all else (`make libcs`). */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

#if !__GLIBC_PREREQ(2, 32)
/* Names of errors are only shown. */
static inline const char *strerrorname_np(int error) {
    (void)error;
    return "an error";
}
#endif

#if !__GLIBC_PREREQ(2, 34)
#define closefrom older_closefrom
#define close_range older_close_range
static inline int close_range(unsigned first, unsigned last, int flags) { return syscall(SYS_close_range, first, last, flags); }
static inline void closefrom(int first) { close_range(first, ~0u, 0); }
#endif

#if !__GLIBC_PREREQ(2, 35)
#define epoll_pwait2 older_epoll_pwait2
static inline int epoll_pwait2(int set, struct epoll_event *events, int most, const struct timespec *timeout, const sigset_t *mask) {
    return syscall(SYS_epoll_pwait2, set, events, most, timeout, mask, 8);
}
#endif
