/* Zero-copy receive (shunt.h): what is lent is what recv() would read, and stays until it is given back. Outside Shunt the functions
 * are not there, and the examples read as anybody does. */
#include "../../crates/preload/include/shunt.h"
#include "pair.h"

/* Borrows at most `most` bytes, checks them, and gives all or a part back. How many. */
static size_t borrow(int fd, size_t most, size_t keep) {
    if (!shunt_recv_zc) {
        take(fd, 1);
        return 1;
    }
    const void *data = NULL;
    ssize_t n = shunt_recv_zc(fd, &data, most, 0);
    CHECK(n > 0 && (size_t)n <= most);
    verify(your_key, got, data, n);
    size_t back = (size_t)n > keep ? n - keep : (size_t)n;
    EQUAL(shunt_release(fd, back), 0);
    got += back;
    return back;
}

static void lent(int fd) {
    for (size_t size = 1; size < 300000; size = size * 3 + 1) {
        order(SEND, size);
        for (size_t done = 0; done < size;) {
            done += borrow(fd, size - done, size % 5);
            /* And beside it in the usual way. */
            if (done < size && done % 3 == 0) {
                size_t part = size - done < 100 ? size - done : 100;
                take(fd, part);
                done += part;
            }
        }
        hear();
    }
    leave(fd);
}

/* A stream that goes on while it is read; it goes back to tcp in the middle. */
static void demoted(int fd) {
    enum { TOTAL = 3000000 };
    order(SEND, TOTAL);
    for (size_t done = 0; done < TOTAL;) {
        done += borrow(fd, 5000, done % 7);
        if (done > TOTAL / 2) {
            int async = fcntl(fd, F_GETFL);
            CHECK(fcntl(fd, F_SETFL, async | O_ASYNC) == 0 && fcntl(fd, F_SETFL, async) == 0);
        }
    }
    hear();
    leave(fd);
}

static void errors(int fd) {
    const void *data;
    if (shunt_recv_zc) {
        ERRNO(shunt_recv_zc(fd, &data, 100, MSG_DONTWAIT), EAGAIN);
        ERRNO(shunt_recv_zc(fd, &data, 0, 0), EINVAL);
        ERRNO(shunt_recv_zc(-1, &data, 100, 0), EBADF);
        ERRNO(shunt_release(fd, 1), EAGAIN);
        ask(SEND, 10);
        EQUAL(shunt_recv_zc(fd, &data, 100, 0), 10);
        EQUAL(shunt_recv_zc(fd, &data, 4, 0), 4);
        EQUAL(shunt_release(fd, 4), 0);
        got += 4;
        ERRNO(shunt_release(fd, 7), EAGAIN);
        got += 6;
        ask(SEND, 10);
        ask(END_WR, 0);
        EQUAL(shunt_recv_zc(fd, &data, 100, 0), 10);
        verify(your_key, got, data, 10);
        EQUAL(shunt_release(fd, 10), 0);
        EQUAL(shunt_recv_zc(fd, &data, 100, 0), 0);
        ERRNO(shunt_release(fd, 1), EINVAL);
        got += 10;
    }
    leave(fd);
}

const struct example examples[] = {
    {"lent", puppet, lent, 0},
    {"demoted", puppet, demoted, 0},
    {"errors", puppet, errors, 0},
    {0},
};
