/* stdio on a connection: fdopen, fprintf, fgets, getline, fread, fwrite, dprintf, scanf, wide streams, setvbuf, ungetc, the unlocked
 * calls, freopen, fclose, fcloseall. glibc's stdio calls its own read and write, not those that a library has put in front of them. */
#include "pair.h"
#include <locale.h>
#include <stdio_ext.h>
#include <wchar.h>

static void lines(int fd) {
    FILE *f = fdopen(fd, "r+");
    char line[200], wanted[200];
    CHECK(f != NULL);
    for (int i = 0; i < 1000; i++) {
        snprintf(wanted, sizeof wanted, "request %d %0*d\n", i, 1 + i % 100, i);
        fprintf(f, "%s", wanted);
        CHECK(fflush(f) == 0);
        CHECK(fgets(line, sizeof line, f) != NULL);
        CHECK(strcmp(line, wanted) == 0);
        fseek(f, 0, SEEK_CUR); /* the C standard wants a word between reading and writing; it fails on sockets, and that is fine */
        clearerr(f);
    }
    CHECK(fclose(f) == 0);
    ERRNO(fcntl(fd, F_GETFD), EBADF);
}

/* Two streams, as careful programs do, and the echo side by getline. */
static void lines_server(int fd) {
    FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, in) > 0) {
        fputs(line, out);
        CHECK(fflush(out) == 0);
    }
    CHECK(feof(in));
    free(line);
    fclose(in);
    fclose(out);
}

static void by_dprintf(int fd) {
    FILE *in = fdopen(dup(fd), "r");
    char line[200], wanted[200];
    for (int i = 0; i < 1000; i++) {
        int n = snprintf(wanted, sizeof wanted, "number %d of %s\n", i, "many");
        EQUAL(dprintf(fd, "number %d of %s\n", i, "many"), n);
        CHECK(fgets(line, sizeof line, in) != NULL);
        CHECK(strcmp(line, wanted) == 0);
    }
    fclose(in);
    close(fd);
}

static void blocks(int fd) {
    FILE *f = fdopen(dup(fd), "w");
    static char data[300000];
    for (int i = 0; i < 10; i++) {
        order(READ, sizeof data + 3);
        fill(my_key, sent, data, sizeof data);
        EQUAL(fwrite(data, 1, sizeof data, f), sizeof data);
        sent += sizeof data;
        for (int k = 0; k < 3; k++) CHECK(putc(byte_at(my_key, sent++), f) != EOF);
        CHECK(fflush(f) == 0);
        hear();
    }
    CHECK(fclose(f) == 0);
    f = fdopen(fd, "r");
    for (int i = 0; i < 10; i++) {
        order(SEND, sizeof data);
        EQUAL(fread(data, 1, sizeof data, f), sizeof data);
        verify(your_key, got, data, sizeof data);
        got += sizeof data;
        hear();
    }
    ask(END_WR, 0);
    EQUAL(getc(f), EOF);
    CHECK(feof(f));
    order(QUIT, 0);
    fclose(f);
    hear();
}

static void unbuffered(int fd) {
    FILE *f = fdopen(fd, "r+");
    setvbuf(f, NULL, _IONBF, 0);
    char line[100];
    for (int i = 0; i < 300; i++) {
        fprintf(f, "%d\n", i);
        CHECK(fgets(line, sizeof line, f) != NULL);
        EQUAL(atoi(line), i);
    }
    fclose(f);
}

static void wide(int fd) {
    FILE *in = fdopen(dup(fd), "r"), *out = fdopen(fd, "w");
    wchar_t line[100];
    for (int i = 0; i < 300; i++) {
        fwprintf(out, L"wide %d\n", i);
        CHECK(fflush(out) == 0);
        CHECK(fgetws(line, 100, in) != NULL);
        EQUAL(wcstol(line + 5, NULL, 10), i);
    }
    fclose(in);
    fclose(out);
}

/* What stdio holds is flushed at exit(), after the last line of main. */
static void flushed_at_exit(int fd) {
    FILE *f = fdopen(fd, "w");
    fprintf(f, "goodbye\n");
    exit(0);
}

static void flushed_at_exit_server(int fd) {
    char data[100];
    EQUAL(recv(fd, data, 100, MSG_WAITALL), 8);
    CHECK(memcmp(data, "goodbye\n", 8) == 0);
}

/* Standard input and output are the connection: printf and scanf. */
static void standard(int fd) {
    CHECK(dup2(fd, 0) == 0);
    CHECK(dup2(fd, 1) == 1);
    close(fd);
    for (int i = 0; i < 300; i++) {
        int back = -1;
        printf("%d\n", i);
        CHECK(fflush(stdout) == 0);
        EQUAL(scanf("%d", &back), 1);
        EQUAL(back, i);
    }
    fclose(stdout);
    fclose(stdin);
}

/* Sends back whatever comes. */
static void returns(int fd) {
    char data[4096];
    ssize_t n;
    while ((n = recv(fd, data, sizeof data, 0)) > 0) send_all(fd, data, n);
    EQUAL(n, 0);
    close(fd);
}

static void comes_back(int fd, const char *wanted, size_t length) {
    char data[8192];
    recv_all(fd, data, length);
    CHECK(memcmp(data, wanted, length) == 0);
}

/* A line-buffered stream sends at each newline, without fflush(). */
static void line_buffered(int fd) {
    static char buffer[500], line[64];
    FILE *out = fdopen(dup(fd), "w");
    CHECK(setvbuf(out, buffer, _IOLBF, sizeof buffer) == 0);
    CHECK(__flbf(out));
    for (int i = 0; i < 200; i++) {
        int n = snprintf(line, sizeof line, "%0*d\n", 1 + i % 50, i);
        fwrite(line, 1, n - 1, out);
        EQUAL(__fpending(out), n - 1);
        putc('\n', out);
        EQUAL(__fpending(out), 0);
        comes_back(fd, line, n);
    }
    CHECK(fclose(out) == 0);
    close(fd);
}

/* A fully buffered one sends what does not fit in its buffer, and the rest at fflush(). */
static void fully_buffered(int fd) {
    static char buffer[1000], data[6000];
    FILE *out = fdopen(dup(fd), "w");
    CHECK(setvbuf(out, buffer, _IOFBF, sizeof buffer) == 0);
    EQUAL(__fbufsize(out), sizeof buffer);
    for (int i = 0; i < 50; i++) {
        fill(my_key, i, data, sizeof data);
        fwrite(data, 1, 100, out);
        EQUAL(__fpending(out), 100);
        for (size_t at = 100; at < sizeof data; at += 100) fwrite(data + at, 1, 100, out);
        comes_back(fd, data, 5000);
        CHECK(fflush(out) == 0);
        comes_back(fd, data + 5000, 1000);
    }
    CHECK(fclose(out) == 0);
    close(fd);
}

/* The calls that take no lock. */
static void unlocked(int fd) {
    FILE *in = fdopen(dup(fd), "r"), *out = fdopen(fd, "w");
    char data[500], back[500];
    for (int i = 0; i < 200; i++) {
        fill(my_key, i, data, sizeof data);
        flockfile(out);
        EQUAL(fwrite_unlocked(data, 1, sizeof data - 1, out), sizeof data - 1);
        CHECK(putc_unlocked((unsigned char)data[sizeof data - 1], out) != EOF);
        CHECK(fflush_unlocked(out) == 0);
        funlockfile(out);
        EQUAL(fread_unlocked(back, 1, 400, in), 400);
        for (int k = 400; k < 500; k++) back[k] = (char)(k % 2 ? fgetc_unlocked(in) : getc_unlocked(in));
        CHECK(memcmp(back, data, sizeof data) == 0);
    }
    fclose(out);
    fclose(in);
}

/* What is pushed back is read again; fscanf pushes back by itself. */
static void pushed_back(int fd) {
    FILE *in = fdopen(dup(fd), "r"), *out = fdopen(fd, "w");
    for (int i = 0; i < 200; i++) {
        int number;
        char word[20], sign;
        fprintf(out, "%d apples;", i);
        CHECK(fflush(out) == 0);
        int first = getc(in);
        EQUAL(first, '0' + (i >= 100 ? i / 100 : i >= 10 ? i / 10 : i));
        EQUAL(ungetc(first, in), first);
        EQUAL(fscanf(in, "%d %19[a-z]%c", &number, word, &sign), 3);
        EQUAL(number, i);
        EQUAL(strcmp(word, "apples"), 0);
        EQUAL(sign, ';');
    }
    fclose(out);
    fclose(in);
}

/* fflush() of a stream that reads, and fseek() on a connection, lose nothing. */
static void input_flushed(int fd) {
    FILE *in = fdopen(dup(fd), "r");
    char line[64];
    send_all(fd, "one\ntwo\nthree\n", 14);
    CHECK(fgets(line, sizeof line, in) && strcmp(line, "one\n") == 0);
    /* It cannot put the bytes back into the socket: glibc says ESPIPE or nothing, and keeps them. */
    fflush(in);
    clearerr(in);
    ERRNO(fseek(in, 0, SEEK_SET), ESPIPE);
    ERRNO(ftell(in), ESPIPE);
    clearerr(in);
    CHECK(fgets(line, sizeof line, in) && strcmp(line, "two\n") == 0);
    CHECK(fgets(line, sizeof line, in) && strcmp(line, "three\n") == 0);
    fclose(in);
    close(fd);
}

/* A program that writes and reads by number beside its stream, with fflush() in between. */
static void mixed(int fd) {
    FILE *f = fdopen(fd, "r+");
    char line[64];
    setvbuf(f, NULL, _IONBF, 0);
    for (int i = 0; i < 200; i++) {
        EQUAL(fileno(f), fd);
        EQUAL(fprintf(f, "ab"), 2);
        EQUAL(write(fileno(f), "cd", 2), 2);
        fputs("ef\n", f);
        EQUAL(send(fileno(f), "gh\n", 3, 0), 3);
        CHECK(fgets(line, sizeof line, f) && strcmp(line, "abcdef\n") == 0);
        recv_all(fileno(f), line, 2);
        CHECK(memcmp(line, "gh", 2) == 0);
        EQUAL(getc(f), '\n');
    }
    fclose(f);
}

/* Bytes that waited unread before the stream was made are the stream's. */
static void unread_before(int fd) {
    char data[20000];
    ask(SEND, sizeof data);
    wait_queued(fd, sizeof data);
    FILE *in = fdopen(fd, "r");
    EQUAL(fread(data, 1, sizeof data, in), sizeof data);
    verify(your_key, got, data, sizeof data);
    got += sizeof data;
    order(QUIT, 0);
    fclose(in);
    hear();
}

/* The stream is made before the socket is connected. */
static void before_connect(int unused) {
    (void)unused;
    int fd = socket(listener_address.ss_family, SOCK_STREAM, 0);
    FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
    CHECK(connect(fd, (void *)&listener_address, listener_length) == 0);
    char line[64];
    for (int i = 0; i < 600; i++) {
        fprintf(out, "%d\n", i);
        CHECK(fflush(out) == 0);
        /* Now and then by number, so that a library that counts calls sees some. */
        if (i % 2) send_all(fileno(in), "x\n", 2);
        CHECK(fgets(line, sizeof line, in) != NULL);
        EQUAL(atoi(line), i);
        if (i % 2) CHECK(fgets(line, sizeof line, in) && line[0] == 'x');
    }
    fclose(in);
    fclose(out);
}

static void returns_to_one(int listener) {
    returns(answer(listener));
}

static void number_zero_server(int listener) {
    int fd = answer(listener);
    warm_server(fd);
    returns(fd);
}

/* A connection gets number 0, the standard input, by being the lowest that is free. */
static void number_zero(int unused) {
    (void)unused;
    close(0);
    int fd = dial(), back;
    EQUAL(fd, 0);
    warm_client(fd);
    for (int i = 0; i < 200; i++) {
        char line[16];
        send_all(0, line, snprintf(line, sizeof line, "%d\n", i));
        EQUAL(scanf("%d", &back), 1);
        EQUAL(back, i);
    }
    fclose(stdin);
}

/* A file stream gives its number to a connection by dup2(). */
static void under_a_stream(int fd) {
    FILE *in = fopen("/dev/null", "r"), *out = fopen("/dev/null", "w");
    CHECK(dup2(fd, fileno(in)) == fileno(in));
    CHECK(dup2(fd, fileno(out)) == fileno(out));
    close(fd);
    char line[64];
    for (int i = 0; i < 300; i++) {
        fprintf(out, "%d\n", i);
        CHECK(fflush(out) == 0);
        CHECK(fgets(line, sizeof line, in) != NULL);
        EQUAL(atoi(line), i);
    }
    fclose(in);
    fclose(out);
}

/* fclose() in one stream of a connection that has more numbers leaves the others alone; the last ends it. */
static void last_fclose(int fd) {
    FILE *one = fdopen(dup(fd), "r+"), *two = fdopen(dup(fd), "r+");
    fputs("first\n", one);
    CHECK(fclose(one) == 0);
    comes_back(fd, "first\n", 6);
    close(fd);
    char line[20];
    fputs("second\n", two);
    CHECK(fflush(two) == 0);
    CHECK(fgets(line, sizeof line, two) && strcmp(line, "second\n") == 0);
    CHECK(fclose(two) == 0);
    hear(); /* the other side has seen the end */
}

static void last_fclose_server(int fd) {
    returns(fd);
    tell(0);
}

/* After fclose() the number is somebody else's: a file, then a new connection, also in an epoll set that knew the old one. */
static void number_again(int listener) {
    for (int i = 0; i < 6; i++) {
        int fd = answer(listener);
        warm_server(fd);
        returns(fd);
    }
}

static void number_again_client(int unused) {
    (void)unused;
    int set = epoll_create1(0), number = -1;
    for (int i = 0; i < 6; i++) {
        int fd = dial();
        if (number >= 0) EQUAL(fd, number);
        number = fd;
        struct epoll_event event = {.events = EPOLLIN, .data.fd = i};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
        warm_client(fd);
        send_all(fd, "ready\n", 6);
        EQUAL(epoll_wait(set, &event, 1, 5000), 1);
        EQUAL(event.data.fd, i);
        FILE *f = fdopen(fd, "r+");
        char line[20];
        CHECK(fgets(line, sizeof line, f) && strcmp(line, "ready\n") == 0);
        CHECK(fclose(f) == 0);
        EQUAL(epoll_wait(set, &event, 1, 0), 0);
        int file = open("/dev/zero", O_RDWR);
        EQUAL(file, number);
        EQUAL(read(file, line, 5), 5);
        EQUAL(line[4], 0);
        EQUAL(write(file, line, 5), 5);
        ERRNO(recv(file, line, 5, 0), ENOTSOCK);
        ERRNO(epoll_ctl(set, EPOLL_CTL_DEL, file, NULL), EPERM);
        CHECK(close(file) == 0);
    }
    close(set);
}

/* freopen(): the stream of a connection becomes one of a file, which ends the connection; what was not flushed is sent before. */
static void reopened_to_file(int fd) {
    char name[] = "/tmp/shunt-test-XXXXXX", line[64];
    close(mkstemp(name));
    FILE *f = fdopen(fd, "r+");
    fputs("last words\n", f);
    CHECK(freopen(name, "w+", f) == f);
    EQUAL(hear(), 11);
    for (int i = 0; i < 100; i++) fprintf(f, "line %d\n", i);
    CHECK(fflush(f) == 0);
    rewind(f);
    for (int i = 0; i < 100; i++) {
        CHECK(fgets(line, sizeof line, f) != NULL);
        EQUAL(atoi(line + 5), i);
    }
    struct stat status;
    CHECK(fstat(fileno(f), &status) == 0 && S_ISREG(status.st_mode));
    fclose(f);
    unlink(name);
}

static void reopened_to_file_server(int fd) {
    char data[100];
    EQUAL(recv(fd, data, sizeof data, MSG_WAITALL), 11);
    CHECK(memcmp(data, "last words\n", 11) == 0);
    tell(11);
}

/* The other way round: freopen() gives the standard streams another file, then they become the connection, then a file again. */
static void reopened_standard(int fd) {
    CHECK(freopen("/dev/null", "r", stdin) == stdin);
    CHECK(freopen("/dev/null", "w", stdout) == stdout);
    for (int round = 0; round < 3; round++) {
        EQUAL(dup2(fd, 0), 0);
        EQUAL(dup2(fd, 1), 1);
        for (int i = 0; i < 50; i++) {
            int back = -1;
            printf("%d\n", i);
            CHECK(fflush(stdout) == 0);
            EQUAL(scanf("%d", &back), 1);
            EQUAL(back, i);
        }
        EQUAL(getchar(), '\n');
        CHECK(freopen("/dev/zero", "r", stdin) == stdin);
        CHECK(freopen("/dev/null", "w", stdout) == stdout);
        EQUAL(getchar(), 0);
        __fpurge(stdin); /* the zeros that it has read ahead */
        EQUAL(puts("nobody hears this") > 0, 1);
        CHECK(fflush(stdout) == 0);
    }
    send_all(fd, "end", 3);
    comes_back(fd, "end", 3);
    close(fd);
}

/* fcloseall() flushes what streams hold, and closes them. */
static void all_closed(int fd) {
    FILE *f = fdopen(fd, "w");
    fputs("before fcloseall\n", f);
    CHECK(fcloseall() == 0);
    EQUAL(hear(), 17);
}

static void all_closed_server(int fd) {
    char data[100];
    EQUAL(recv(fd, data, 17, MSG_WAITALL), 17);
    CHECK(memcmp(data, "before fcloseall\n", 17) == 0);
    tell(17);
    recv(fd, data, 1, 0);
}

/* Wide characters that take several bytes, both ways in one stream each. */
static void wide_utf8(int fd) {
    CHECK(setlocale(LC_ALL, "C.UTF-8") != NULL);
    FILE *in = fdopen(dup(fd), "r"), *out = fdopen(fd, "w");
    for (int i = 0; i < 300; i++) {
        wchar_t wanted[20], line[20];
        swprintf(wanted, 20, L"%d \u00e9\u20ac%lc\n", i, (wint_t)(0x1f600 + i % 50));
        CHECK(fputws(wanted, out) >= 0);
        CHECK(fflush(out) == 0);
        wint_t first = fgetwc(in);
        CHECK(first != WEOF && ungetwc(first, in) == first);
        CHECK(fgetws(line, 20, in) != NULL);
        CHECK(wcscmp(line, wanted) == 0);
    }
    EQUAL(fwide(in, 0) > 0, 1);
    fclose(in);
    fclose(out);
}

/* A handler interrupts a stream that waits, and it goes on. */
static volatile sig_atomic_t alarms;
static void on_alarm(int unused) {
    (void)unused;
    alarms++;
}

static void interrupted_stream(int fd) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 2000}, {0, 2000}}, off = {{0, 0}, {0, 0}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    FILE *in = fdopen(fd, "r");
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    char data[100];
    for (int i = 0; i < 5; i++) {
        int before = alarms;
        order(SEND_ASLEEP, sizeof data);
        EQUAL(fread(data, 1, sizeof data, in), sizeof data);
        verify(your_key, got, data, sizeof data);
        got += sizeof data;
        while (alarms == before) continue;
    }
    CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);
    order(QUIT, 0);
    fclose(in);
    hear();
}

const struct example examples[] = {
    {"lines", lines_server, lines, 0},
    {"by_dprintf", lines_server, by_dprintf, 0},
    {"blocks", puppet, blocks, 0},
    {"unbuffered", lines_server, unbuffered, 0},
    {"wide", lines_server, wide, 0},
    {"flushed_at_exit", flushed_at_exit_server, flushed_at_exit, 0},
    {"standard", lines_server, standard, 0},
    {"line_buffered", returns, line_buffered, 0},
    {"fully_buffered", returns, fully_buffered, 0},
    {"unlocked", returns, unlocked, 0},
    {"pushed_back", returns, pushed_back, 0},
    {"input_flushed", returns, input_flushed, 0},
    {"mixed", returns, mixed, 0},
    {"unread_before", puppet, unread_before, 0},
    {"before_connect", returns_to_one, before_connect, RAW},
    {"number_zero", number_zero_server, number_zero, RAW | TCP_OK},
    {"under_a_stream", returns, under_a_stream, 0},
    {"last_fclose", last_fclose_server, last_fclose, 0},
    {"number_again", number_again, number_again_client, RAW},
    {"reopened_to_file", reopened_to_file_server, reopened_to_file, 0},
    {"reopened_standard", returns, reopened_standard, 0},
    {"all_closed", all_closed_server, all_closed, 0},
    {"wide_utf8", returns, wide_utf8, 0},
    {"interrupted_stream", puppet, interrupted_stream, 0},
    {0},
};
