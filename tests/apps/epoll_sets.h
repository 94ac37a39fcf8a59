/* What examples of epoll sets have in common. */
#ifndef EPOLL_SETS_H
#define EPOLL_SETS_H
#include "pair.h"

static inline void add(int set, int fd, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

/* Exactly this descriptor is ready. */
static inline void only(int set, int fd, int milliseconds) {
    struct epoll_event events[8];
    EQUAL(epoll_wait(set, events, 8, milliseconds), 1);
    EQUAL(events[0].data.fd, fd);
    EQUAL(events[0].events, EPOLLIN);
}

#endif
