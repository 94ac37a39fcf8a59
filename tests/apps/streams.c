/* stdio on a connection: fdopen, fprintf, fgets, getline, fread, fwrite, dprintf, wide streams, fclose. glibc's stdio calls its own
 * read and write, not those that a library has put in front of them. */
#include "pair.h"
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

const struct example examples[] = {
    {"lines", lines_server, lines, 0},
    {"by_dprintf", lines_server, by_dprintf, 0},
    {"blocks", puppet, blocks, 0},
    {"unbuffered", lines_server, unbuffered, 0},
    {"wide", lines_server, wide, 0},
    {"flushed_at_exit", flushed_at_exit_server, flushed_at_exit, 0},
    {"standard", lines_server, standard, 0},
    {0},
};
