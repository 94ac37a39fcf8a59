/* A cat that is statically linked: whatever descriptor it inherits, no preloaded library helps it to read or write. It wants no signal
 * to be blocked by whoever started it. With an argument it takes a connection from a message on its standard input instead, and sends
 * back what comes on it. */
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int passed(void) {
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int fd;
    if (recvmsg(0, &m, 0) != 1 || CMSG_FIRSTHDR(&m) == NULL) return -1;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return dup2(fd, 0) == 0 && dup2(fd, 1) == 1 ? close(fd) : -1;
}

int main(int argc, char **argv) {
    char data[4096];
    ssize_t n;
    sigset_t mask;
    (void)argv;
    if (argc > 1 && passed() != 0) return 4;
    if (sigprocmask(SIG_BLOCK, NULL, &mask) != 0) return 2;
    for (int signal = 1; signal < 32; signal++)
        if (sigismember(&mask, signal)) return 3;
    while ((n = read(0, data, sizeof data)) > 0)
        for (ssize_t done = 0, m; done < n; done += m)
            if ((m = write(1, data + done, n - done)) <= 0) return 1;
    return n < 0;
}
