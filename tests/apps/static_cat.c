/* A cat that is statically linked: whatever descriptor it inherits, no preloaded library helps it to read or write. It wants no signal
 * to be blocked by whoever started it. */
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

int main(void) {
    char data[4096];
    ssize_t n;
    sigset_t mask;
    if (sigprocmask(SIG_BLOCK, NULL, &mask) != 0) return 2;
    for (int signal = 1; signal < 32; signal++)
        if (sigismember(&mask, signal)) return 3;
    while ((n = read(0, data, sizeof data)) > 0)
        for (ssize_t done = 0, m; done < n; done += m)
            if ((m = write(1, data + done, n - done)) <= 0) return 1;
    return n < 0;
}
