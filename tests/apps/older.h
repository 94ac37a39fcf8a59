/* What glibc has only lately, for an older one and for musl: included before all else (`make libcs`). */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Not of musl. */
#ifndef __GLIBC_PREREQ
#define __GLIBC_PREREQ(major, minor) 0
#endif

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif
#ifndef RWF_NOWAIT
#define RWF_NOWAIT 8
#endif
#ifndef TCP_COOKIE_TRANSACTIONS
#define TCP_COOKIE_TRANSACTIONS 15
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

/* All that a test has open are below it. */
#define posix_spawn_file_actions_addclosefrom_np(actions, first) older_addclosefrom(actions, first)
static inline int older_addclosefrom(posix_spawn_file_actions_t *actions, int first) {
    for (int fd = first; fd < 256; fd++)
        posix_spawn_file_actions_addclose(actions, fd);
    return 0;
}
#endif

#ifndef __GLIBC__
/* musl closes no stream but by fclose(). */
static inline int fcloseall(void) { return fflush(NULL); }
static inline ssize_t preadv2(int fd, const struct iovec *places, int count, off_t at, int flags) {
    return syscall(SYS_preadv2, fd, places, count, at, 0, flags);
}
static inline ssize_t pwritev2(int fd, const struct iovec *places, int count, off_t at, int flags) {
    return syscall(SYS_pwritev2, fd, places, count, at, 0, flags);
}
#endif

#if !__GLIBC_PREREQ(2, 35)
#define epoll_pwait2 older_epoll_pwait2
static inline int epoll_pwait2(int set, struct epoll_event *events, int most, const struct timespec *timeout, const sigset_t *mask) {
    return syscall(SYS_epoll_pwait2, set, events, most, timeout, mask, 8);
}
#endif
