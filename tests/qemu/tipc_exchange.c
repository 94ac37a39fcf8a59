/* Sends messages of all sizes over TIPC and back, and looks at every byte of them at both ends.
 *
 *     tipc_exchange server TYPE                                    until it is killed
 *     tipc_exchange client TYPE seqpacket|rdm [-s SIZES] [-n ROUNDS | -t SECONDS] [-w WINDOW] [-l LIMIT]
 *
 * The client sends each of SIZES in turn, ROUNDS times or for SECONDS, with WINDOW messages under way, and waits at most LIMIT seconds for all.
 * What is in a message follows from its key (which differs from run to run), its number and the way that it goes. On success it prints
 * one line of JSON: how many messages and bytes went each way, and the longest time between two answers. Exit status: 0 good, 1 a wrong
 * payload, a lost, repeated or misplaced message, 2 wrong usage, 3 the time is up or nobody serves, 4 a broken connection or another error,
 * 5 the server is on the client's own node. */
#include "tipc.h"

enum way { REQUEST = 0x51, ANSWER, COMPLAINT };

struct head {
    uint32_t way, size;
    uint64_t key, number;
};

static _Alignas(8) char buffer[MOST + 8], expected[MOST + 8];

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static void fill(char *into, struct head head) {
    uint64_t seed = mix(head.key ^ mix(head.number ^ (uint64_t)head.way << 56));
    memcpy(into, &head, sizeof head);
    for (size_t at = sizeof head; at < head.size; at += 8) {
        seed += 0x9e3779b97f4a7c15;
        uint64_t word = mix(seed);
        memcpy(into + at, &word, head.size - at < 8 ? head.size - at : 8);
    }
}

/* Whether the message in `buffer` is what its own head says. */
static bool sound(size_t length, enum way way) {
    struct head head;
    if (length < sizeof head) return false;
    memcpy(&head, buffer, sizeof head);
    if (head.way != way || head.size != length) return false;
    fill(expected, head);
    return memcmp(buffer, expected, length) == 0;
}

/* Turns the request in `buffer` into its answer; a request that is wrong, or is not the one after the last, into a complaint. */
static size_t answer(size_t length, uint64_t *key, uint64_t *next) {
    struct head head = {0};
    bool good = sound(length, REQUEST);
    if (good) {
        memcpy(&head, buffer, sizeof head);
        if (head.key != *key) *key = head.key, *next = 0;
        good = head.number == (*next)++;
    }
    if (!good) {
        fprintf(stderr, "a wrong request of %zu bytes: number %lu\n", length, head.number);
        head.size = sizeof head;
    }
    head.way = good ? ANSWER : COMPLAINT;
    fill(buffer, head);
    return head.size;
}

static void serve_connection(int fd) {
    uint64_t key = 0, next = 0;
    for (ssize_t length; (length = recv(fd, buffer, MOST, 0)) > 0;) {
        size_t size = answer(length, &key, &next);
        if (send(fd, buffer, size, 0) != (ssize_t)size) break;
    }
    exit(GOOD);
}

_Noreturn static void server(uint32_t type) {
    uint64_t key = 0, next = 0;
    struct sockaddr_tipc from;
    int listening = TRY(socket(AF_TIPC, SOCK_SEQPACKET, 0)), rdm = TRY(socket(AF_TIPC, SOCK_RDM, 0));
    signal(SIGCHLD, SIG_IGN);
    serve(listening, type);
    TRY(listen(listening, 16));
    serve(rdm, type + 1);
    struct pollfd polled[] = {{listening, POLLIN, 0}, {rdm, POLLIN, 0}};
    for (;;) {
        if (poll(polled, 2, -1) < 0) continue;
        if (polled[0].revents) {
            int fd = TRY(accept(listening, NULL, NULL));
            if (TRY(fork()) == 0) serve_connection(fd);
            close(fd);
        }
        if (polled[1].revents) {
            socklen_t known = sizeof from;
            size_t length = TRY(recvfrom(rdm, buffer, MOST, 0, (struct sockaddr *)&from, &known));
            size_t size = answer(length, &key, &next);
            TRY(sendto(rdm, buffer, size, 0, (struct sockaddr *)&from, sizeof from));
        }
    }
}

static void check_answer(size_t length, struct head wanted) {
    struct head head = {0};
    memcpy(&head, buffer, length < sizeof head ? length : sizeof head);
    if (head.way == REQUEST) end(FAILED, "message %lu came back: it could not be delivered", head.number);
    if (head.way == COMPLAINT) end(WRONG_PAYLOAD, "the server says that message %lu came to it wrong", wanted.number);
    fill(expected, wanted);
    if (length != wanted.size || memcmp(buffer, expected, length) != 0)
        end(WRONG_PAYLOAD, "answer %lu of %u bytes is wrong: %zu bytes with number %lu", wanted.number, wanted.size, length, head.number);
}

static int client(uint32_t type, bool stream, size_t *sizes, int count, uint64_t rounds, int64_t seconds, uint64_t window) {
    struct sockaddr_tipc to = service(stream ? type : type + 1), from;
    socklen_t known = sizeof from;
    uint64_t key = mix(now_ns()), sent = 0, received = 0, bytes = 0;
    int64_t longest = 0, start = now_ns(), last = start;
    int fd = TRY(socket(AF_TIPC, stream ? SOCK_SEQPACKET : SOCK_RDM, 0));
    if (stream) {
        TRY(connect(fd, (struct sockaddr *)&to, sizeof to));
        TRY(getpeername(fd, (struct sockaddr *)&from, &known));
        want_other_node(fd, from.addr.id.node);
    }
    for (;;) {
        bool more = seconds ? now_ns() - start < seconds * 1000000000 : sent < rounds * count;
        if (more && sent - received < window) {
            struct head head = {REQUEST, sizes[sent % count], key, sent};
            fill(buffer, head);
            ssize_t gone = stream ? send(fd, buffer, head.size, 0) : sendto(fd, buffer, head.size, 0, (struct sockaddr *)&to, sizeof to);
            if (TRY(gone) != head.size) end(FAILED, "sent %zd bytes instead of %u", gone, head.size);
            sent++;
            continue;
        }
        if (received == sent) break;
        known = sizeof from;
        ssize_t length = TRY(recvfrom(fd, buffer, MOST, 0, (struct sockaddr *)&from, &known));
        if (length == 0) end(FAILED, "the server has ended the connection after %lu answers", received);
        check_answer(length, (struct head){ANSWER, sizes[received % count], key, received});
        if (!stream) want_other_node(fd, from.addr.id.node);
        bytes += length;
        received++;
        int64_t now = now_ns();
        if (now - last > longest) longest = now - last;
        last = now;
    }
    printf("{\"socket\": \"%s\", \"messages\": %lu, \"bytes\": %lu, \"seconds\": %.3f, \"longest_ms\": %.1f}\n", stream ? "seqpacket" : "rdm",
           received, bytes, (now_ns() - start) / 1e9, longest / 1e6);
    return GOOD;
}

int main(int argc, char **argv) {
    char usual[] = "64,65,100,999,1400,1472,1500,4096,16384,40000,60000";
    size_t sizes[SIZES];
    int count = parse_sizes(usual, sizeof(struct head), sizes);
    uint64_t rounds = 10, window = 4;
    int64_t seconds = 0;
    unsigned limit = 60;

    if (argc == 3 && !strcmp(argv[1], "server")) server(atoi(argv[2]));
    if (argc < 4 || strcmp(argv[1], "client")) goto usage;
    bool stream = !strcmp(argv[3], "seqpacket");
    if (!stream && strcmp(argv[3], "rdm")) goto usage;
    optind = 4;
    for (int option; (option = getopt(argc, argv, "s:n:t:w:l:")) != -1;) switch (option) {
        case 's': count = parse_sizes(optarg, sizeof(struct head), sizes); break;
        case 'n': rounds = strtoul(optarg, NULL, 10); break;
        case 't': seconds = atoi(optarg); break;
        case 'w': window = strtoul(optarg, NULL, 10); break;
        case 'l': limit = atoi(optarg); break;
        default: goto usage;
    }
    if (optind != argc || count == 0 || window == 0) goto usage;
    limit_time(limit);
    wait_for_service(stream ? atoi(argv[2]) : atoi(argv[2]) + 1, limit * 1000);
    return client(atoi(argv[2]), stream, sizes, count, rounds, seconds, window);

usage:
    end(USAGE, "usage: tipc_exchange server TYPE\n"
        "       tipc_exchange client TYPE seqpacket|rdm [-s SIZES] [-n ROUNDS | -t SECONDS] [-w WINDOW] [-l LIMIT]");
}
