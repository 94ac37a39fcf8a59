/* A cat that is statically linked: whatever descriptor it inherits, no preloaded library helps it to read or write. */
#include <unistd.h>

int main(void) {
    char data[4096];
    ssize_t n;
    while ((n = read(0, data, sizeof data)) > 0)
        for (ssize_t done = 0, m; done < n; done += m)
            if ((m = write(1, data + done, n - done)) <= 0) return 1;
    return n < 0;
}
