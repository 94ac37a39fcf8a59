/* Stands in for libshunt.so in the tests of the command: counts its process in the report of `shunt run`, and one connection
 * for each letter of FAKE: t (tracked, stays on TCP for reason 5), p (promoted). */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

const char SHUNT_VERSION[] = FAKE_VERSION;

__attribute__((constructor)) static void count(void) {
    const char *path = getenv("SHUNT_REPORT"), *fake = getenv("FAKE");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    uint64_t *word = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (word == MAP_FAILED || word[0] != 0x5348525400000001)
        return;
    __atomic_fetch_add(&word[7], 1, __ATOMIC_RELAXED);
    for (; fake && *fake; fake++) {
        __atomic_fetch_add(&word[1], 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(*fake == 'p' ? &word[2] : &word[16 + 5], 1, __ATOMIC_RELAXED);
    }
}
