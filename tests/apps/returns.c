/* A server that returns what it gets, a thread for each connection: for clients in other languages. `returns PORT`. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void *serve(void *argument) {
    int fd = (int)(intptr_t)argument, one = 1;
    char data[5000];
    ssize_t n;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    while ((n = recv(fd, data, sizeof data, 0)) > 0)
        for (ssize_t done = 0, m; done < n; done += m)
            if ((m = send(fd, data + done, n - done, MSG_NOSIGNAL)) <= 0) break;
    close(fd);
    return NULL;
}

int main(int argc, char **argv) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 0), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&at, sizeof at) != 0 || listen(listener, 50) != 0) {
        perror("returns");
        return 1;
    }
    for (;;) {
        pthread_t thread;
        intptr_t fd = accept(listener, NULL, NULL);
        if (fd < 0 || pthread_create(&thread, NULL, serve, (void *)fd) != 0) return 1;
        pthread_detach(thread);
    }
}
