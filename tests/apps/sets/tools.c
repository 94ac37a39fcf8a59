/* Dice, the clock, what is printed, and bytes without content. */
#include "sets.h"

int seed, step;
bool is_other;

_Noreturn void broken(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: %s, seed %d, step %d: not true: %s (%s)\n", file, line, is_other ? "other" : "first", seed, step, what, strerror(errno));
    _exit(1);
}

void show(const char *format, ...) {
    va_list list;
    va_start(list, format);
    printf("%d.%d ", seed, step);
    vprintf(format, list);
    printf("\n");
    fflush(stdout);
    va_end(list);
}


uint64_t dice_state;
uint32_t dice(uint32_t sides) {
    dice_state ^= dice_state << 13, dice_state ^= dice_state >> 7, dice_state ^= dice_state << 17;
    return (dice_state * 0x2545F4914F6CDD1D >> 33) % sides;
}
bool chance(uint32_t percent) { return dice(100) < percent; }

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

void take(int fd, size_t count) {
    char data[4096];
    while (count) {
        ssize_t n = recv(fd, data, count < sizeof data ? count : sizeof data, 0);
        CHECK(n > 0);
        count -= n;
    }
}

void put(int fd, size_t count) {
    static const char data[4096];
    while (count) {
        ssize_t n = send(fd, data, count < sizeof data ? count : sizeof data, MSG_NOSIGNAL);
        CHECK(n > 0);
        count -= n;
    }
}
