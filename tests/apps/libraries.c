/* Callers that the linker treats in ways of their own: a C++ library loaded at the start, or by dlopen(), also with RTLD_DEEPBIND, by
 * which a library takes libc's functions before anyone's; its constructors, destructors and the end of its threads use connections. */
#include "pair.h"
#include <dlfcn.h>
#include <libgen.h>

static void returns(int fd) {
    char data[4096];
    ssize_t n;
    while ((n = recv(fd, data, sizeof data, 0)) > 0) send_all(fd, data, n);
    EQUAL(n, 0);
    close(fd);
}

static char *beside_us(const char *name, char *path) {
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(n > 0);
    self[n] = 0;
    snprintf(path, PATH_MAX, "%s/%s", dirname(self), name);
    return path;
}

static char *library(void) {
    static char path[PATH_MAX];
    return beside_us("library.so", path);
}

static void talk(int fd, int rounds) {
    for (int i = 0; i < rounds; i++) {
        char out[100], in[100];
        fill(5, i, out, sizeof out);
        send_all(fd, out, sizeof out);
        recv_all(fd, in, sizeof in);
        CHECK(memcmp(in, out, sizeof in) == 0);
    }
}

static void (*use)(int, int);
static int the_fd;
static void *in_thread(void *unused) {
    (void)unused;
    use(the_fd, 10);
    return NULL;
}

static void loaded(int fd, int flags) {
    char number[16];
    the_fd = fd;
    snprintf(number, sizeof number, "%d", fd);
    setenv("SOCKET", number, 1);
    for (int i = 0; i < 5; i++) {
        pthread_t thread;
        void *handle = dlopen(library(), flags);
        if (!handle) fprintf(stderr, "%s\n", dlerror());
        CHECK(handle != NULL);
        talk(fd, 10);
        use = (void (*)(int, int))dlsym(handle, "library_use");
        CHECK(use != NULL);
        CHECK(pthread_create(&thread, NULL, in_thread, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        talk(fd, 10);
        use(fd, 10);
        talk(fd, 10);
        CHECK(dlclose(handle) == 0);
        talk(fd, 10);
    }
    unsetenv("SOCKET");
    exit(0); /* the last destructors run here */
}

static void opened(int fd) { loaded(fd, RTLD_NOW); }
static void opened_lazily(int fd) { loaded(fd, RTLD_LAZY); }
static void opened_global(int fd) { loaded(fd, RTLD_NOW | RTLD_GLOBAL); }
static void opened_deep(int fd) { loaded(fd, RTLD_NOW | RTLD_DEEPBIND); }
static void opened_deep_lazily(int fd) { loaded(fd, RTLD_LAZY | RTLD_DEEPBIND); }

/* The library is there before the connection, and calls by functions that it bound deeply, when it was loaded or when it first calls. */
static void deep_first(int flags) {
    void *handle = dlopen(library(), flags | RTLD_DEEPBIND);
    CHECK(handle != NULL);
    use = (void (*)(int, int))dlsym(handle, "library_use");
    int fd = dial();
    warm_client(fd);
    for (int i = 0; i < 20; i++) {
        use(fd, 10);
        talk(fd, 10);
    }
    exit(0);
}

static void deep_before(int unused) {
    (void)unused;
    deep_first(RTLD_NOW);
}

static void deep_before_lazily(int unused) {
    (void)unused;
    deep_first(RTLD_LAZY);
}

static void deep_before_server(int listener) {
    int fd = answer(listener);
    warm_server(fd);
    returns(fd);
}

/* A program that knows nothing of sockets has the library from its start: constructor and destructor talk over a connection of their
 * own, whichever library is initialised first. */
static void at_start(int unused) {
    (void)unused;
    char address[INET_ADDRSTRLEN], port[16], both[2 * PATH_MAX];
    const char *others = getenv("LD_PRELOAD");
    struct sockaddr_in *to = (void *)&listener_address;
    CHECK(inet_ntop(AF_INET, &to->sin_addr, address, sizeof address) != NULL);
    snprintf(port, sizeof port, "%d", ntohs(to->sin_port));
    for (int i = 0; i < 2; i++) {
        snprintf(both, sizeof both, "%s %s", i || !others ? library() : others, i && others ? others : library());
        pid_t child = fork();
        if (child == 0) {
            setenv("ADDRESS", address, 1);
            setenv("PORT", port, 1);
            setenv("LD_PRELOAD", both, 1);
            execl(beside_us("nothing", both), "nothing", NULL);
            _exit(127);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        EQUAL(status, 0);
    }
}

static void at_start_server(int listener) {
    for (int i = 0; i < 2; i++) returns(answer(listener));
}

/* What dlsym() finds is called past every table of the program's. */
static void by_address(int fd) {
    void *libc = dlopen("libc.so.6", RTLD_LAZY);
    ssize_t (*receive)(int, void *, size_t, int) = (ssize_t(*)(int, void *, size_t, int))dlsym(RTLD_DEFAULT, "recv");
    ssize_t (*transmit)(int, const void *, size_t, int) = (ssize_t(*)(int, const void *, size_t, int))dlsym(RTLD_DEFAULT, "send");
    CHECK(libc && receive && transmit);
    for (int i = 0; i < 200; i++) {
        char data[100], out[100];
        fill(6, i, out, sizeof out);
        EQUAL(transmit(fd, out, sizeof out, 0), sizeof out);
        EQUAL(receive(fd, data, sizeof data, MSG_WAITALL), sizeof data);
        CHECK(memcmp(data, out, sizeof data) == 0);
    }
    close(fd);
}

const struct example examples[] = {
    {"opened", returns, opened, 0},
    {"opened_lazily", returns, opened_lazily, 0},
    {"opened_global", returns, opened_global, 0},
    {"opened_deep", returns, opened_deep, 0},
    {"opened_deep_lazily", returns, opened_deep_lazily, 0},
    {"deep_before", deep_before_server, deep_before, RAW},
    {"deep_before_lazily", deep_before_server, deep_before_lazily, RAW},
    {"at_start", at_start_server, at_start, RAW | TCP_OK},
    {"by_address", returns, by_address, 0},
    {0},
};
