/* What TIPC takes and carries, against the size of messages.
 *
 *     tipc_bench server TYPE                                       until it is killed
 *     tipc_bench client TYPE [-s SIZES] [-n ROUND TRIPS] [-b BYTES] [-l LIMIT]
 *
 * For each size the client measures round trips, by SEQPACKET and by RDM, and then how fast about BYTES bytes (at least 100 messages, at
 * most 20,000) go one way by SEQPACKET, until the server has said that all have come. It prints a line of JSON for each. Exit statuses are those
 * of tipc_exchange. */
#include "tipc.h"

/* The first byte of a message says what the server is to do with it. */
enum wish { ECHO = 'e', TAKE = 't', COUNT = 'c' };

static char buffer[MOST];

static void serve_connection(int fd) {
    uint64_t taken = 0;
    for (ssize_t length; (length = recv(fd, buffer, MOST, 0)) > 0;) {
        if (buffer[0] == TAKE) {
            taken += length;
            continue;
        }
        if (buffer[0] == COUNT) {
            memcpy(buffer, &taken, sizeof taken);
            length = sizeof taken;
            taken = 0;
        }
        if (send(fd, buffer, length, 0) != length) break;
    }
    exit(GOOD);
}

static void serve_datagram(int fd) {
    struct sockaddr_tipc from;
    socklen_t known = sizeof from;
    ssize_t length = TRY(recvfrom(fd, buffer, MOST, 0, (struct sockaddr *)&from, &known));
    TRY(sendto(fd, buffer, length, 0, (struct sockaddr *)&from, sizeof from));
}

static int by_time(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static void latency(const char *name, int fd, size_t size, int rounds) {
    int64_t *took = calloc(rounds, sizeof *took);
    for (int i = -rounds / 10; i < rounds; i++) {
        int64_t start = now_ns();
        buffer[0] = ECHO;
        if (TRY(send(fd, buffer, size, 0)) != (ssize_t)size || TRY(recv(fd, buffer, MOST, 0)) != (ssize_t)size)
            end(FAILED, "a round trip of %zu bytes by %s was cut short", size, name);
        if (i >= 0) took[i] = now_ns() - start;
    }
    qsort(took, rounds, sizeof *took, by_time);
    printf("{\"measured\": \"latency\", \"socket\": \"%s\", \"size\": %zu, \"count\": %d, \"min_us\": %.1f, \"p50_us\": %.1f, "
           "\"p99_us\": %.1f}\n", name, size, rounds, took[0] / 1e3, took[rounds / 2] / 1e3, took[rounds * 99 / 100] / 1e3);
    fflush(stdout);
    free(took);
}

static void throughput(int fd, size_t size, uint64_t bytes) {
    uint64_t count = bytes / size, taken;
    count = count < 100 ? 100 : count > 20000 ? 20000 : count;
    int64_t start = now_ns();
    buffer[0] = TAKE;
    for (uint64_t i = 0; i < count; i++)
        if (TRY(send(fd, buffer, size, 0)) != (ssize_t)size) end(FAILED, "a message of %zu bytes was cut short", size);
    buffer[0] = COUNT;
    TRY(send(fd, buffer, 1, 0));
    TRY(recv(fd, &taken, sizeof taken, 0));
    double seconds = (now_ns() - start) / 1e9;
    if (taken != count * size) end(WRONG_PAYLOAD, "%lu bytes were sent, %lu have come", count * size, taken);
    printf("{\"measured\": \"throughput\", \"socket\": \"seqpacket\", \"size\": %zu, \"count\": %lu, \"mb_per_s\": %.3f, "
           "\"messages_per_s\": %.0f}\n", size, count, taken / seconds / 1e6, count / seconds);
    fflush(stdout);
}

static int connected(uint32_t type) {
    struct sockaddr_tipc to = service(type);
    socklen_t known = sizeof to;
    int fd = TRY(socket(AF_TIPC, SOCK_SEQPACKET, 0));
    TRY(connect(fd, (struct sockaddr *)&to, sizeof to));
    TRY(getpeername(fd, (struct sockaddr *)&to, &known));
    want_other_node(fd, to.addr.id.node);
    return fd;
}

/* Later sends go without an address: RDM sockets remember one, too. */
static int addressed(uint32_t type) {
    struct sockaddr_tipc to = service(type);
    int fd = TRY(socket(AF_TIPC, SOCK_RDM, 0));
    TRY(connect(fd, (struct sockaddr *)&to, sizeof to));
    return fd;
}

int main(int argc, char **argv) {
    char usual[] = "64,256,1024,1400,4096,16384,60000";
    size_t sizes[SIZES];
    int count = parse_sizes(usual, 1, sizes), rounds = 1000;
    uint64_t bytes = 20000000;
    unsigned limit = 300;

    if (argc == 3 && !strcmp(argv[1], "server")) serve_both(atoi(argv[2]), serve_connection, serve_datagram);
    if (argc < 3 || strcmp(argv[1], "client")) goto usage;
    optind = 3;
    for (int option; (option = getopt(argc, argv, "s:n:b:l:")) != -1;) switch (option) {
        case 's': count = parse_sizes(optarg, 1, sizes); break;
        case 'n': rounds = atoi(optarg); break;
        case 'b': bytes = strtoul(optarg, NULL, 10); break;
        case 'l': limit = atoi(optarg); break;
        default: goto usage;
    }
    if (optind != argc || count == 0 || rounds <= 0) goto usage;
    uint32_t type = atoi(argv[2]);
    limit_time(limit);
    wait_for_service(type, limit * 1000);
    wait_for_service(type + 1, limit * 1000);
    int stream = connected(type), rdm = addressed(type + 1);
    for (int i = 0; i < count; i++) {
        latency("seqpacket", stream, sizes[i], rounds);
        latency("rdm", rdm, sizes[i], rounds);
        throughput(stream, sizes[i], bytes);
    }
    return GOOD;

usage:
    end(USAGE, "usage: tipc_bench server TYPE\n"
        "       tipc_bench client TYPE [-s SIZES] [-n ROUND TRIPS] [-b BYTES] [-l LIMIT]");
}
