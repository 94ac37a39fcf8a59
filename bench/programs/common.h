/*
 * What the measuring programs share: options, clocks, a histogram, CPU pinning, and sockets.
 *
 * Every program takes `--name value` options, prints one line of JSON for each result on stdout, and says what went
 * wrong on stderr. A server prints `{"ready": ADDRESS}` when clients may come; port 0 asks the kernel for a free one.
 */
#ifndef COMMON_H
#define COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

/* ---- failing ---- */

UNUSED __attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
	int error = errno;
	va_list args;

	fprintf(stderr, "%s: ", program_invocation_short_name);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, error ? ": %s\n" : "\n", strerror(error));
	exit(1);
}

/* ---- options ---- */

/* The word after `--name`, or NULL where the option is absent. */
UNUSED static const char *option(int argc, char **argv, const char *name)
{
	for (int i = 1; i + 1 < argc; i++)
		if (strncmp(argv[i], "--", 2) == 0 && strcmp(argv[i] + 2, name) == 0)
			return argv[i + 1];
	return NULL;
}

UNUSED static bool flag(int argc, char **argv, const char *name)
{
	for (int i = 1; i < argc; i++)
		if (strncmp(argv[i], "--", 2) == 0 && strcmp(argv[i] + 2, name) == 0)
			return true;
	return false;
}

UNUSED static double number(int argc, char **argv, const char *name, double otherwise)
{
	const char *text = option(argc, argv, name);
	char *end;
	double value;

	if (!text)
		return otherwise;
	value = strtod(text, &end);
	errno = 0;
	if (end == text || *end)
		die("--%s %s is not a number", name, text);
	return value;
}

/* ---- time and processors ---- */

UNUSED static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Nanoseconds of processor time that this process has used, in user and kernel mode. */
UNUSED static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

UNUSED static void pin(int cpu)
{
	cpu_set_t set;

	if (cpu < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set) < 0)
		die("cannot run on CPU %d alone", cpu);
}

UNUSED static void pin_by_option(int argc, char **argv)
{
	pin((int)number(argc, argv, "cpu", -1));
}

/* ---- histogram: 128 steps for each power of two, so that a value is at most 0.8% off ---- */

#define STEP_BITS 7
#define STEPS (1u << STEP_BITS)

struct histogram {
	uint64_t count, min, max;
	double sum;
	uint32_t bucket[(64 - STEP_BITS + 1) * STEPS];
};

UNUSED static inline void histogram_add(struct histogram *h, uint64_t value)
{
	unsigned power = 63 - (unsigned)__builtin_clzll(value | 1);
	unsigned index = (unsigned)value;

	if (power >= STEP_BITS) {
		unsigned shift = power - STEP_BITS;

		index = (shift + 1) * STEPS + ((unsigned)(value >> shift) & (STEPS - 1));
	}
	h->bucket[index]++;
	if (!h->count || value < h->min)
		h->min = value;
	if (value > h->max)
		h->max = value;
	h->count++;
	h->sum += (double)value;
}

/* The value that `share` (0 to 1) of all values do not exceed, as the middle of its bucket. */
UNUSED static uint64_t histogram_share(const struct histogram *h, double share)
{
	uint64_t seen = 0, wanted = (uint64_t)(share * (double)h->count + 0.5);

	for (unsigned i = 0; i < sizeof h->bucket / sizeof *h->bucket; i++) {
		seen += h->bucket[i];
		if (h->bucket[i] && seen >= wanted) {
			unsigned shift = i / STEPS;

			if (!shift)
				return i;
			return ((uint64_t)(STEPS + i % STEPS) << (shift - 1)) + ((1ull << (shift - 1)) >> 1);
		}
	}
	return h->max;
}

/* The histogram as members of a JSON object, without braces. */
UNUSED static void histogram_print(const struct histogram *h)
{
	printf("\"count\": %llu, \"min_ns\": %llu, \"p50_ns\": %llu, \"p90_ns\": %llu, \"p99_ns\": %llu, "
	       "\"p999_ns\": %llu, \"max_ns\": %llu, \"mean_ns\": %.1f",
	       (unsigned long long)h->count, (unsigned long long)h->min, (unsigned long long)histogram_share(h, 0.5),
	       (unsigned long long)histogram_share(h, 0.9), (unsigned long long)histogram_share(h, 0.99),
	       (unsigned long long)histogram_share(h, 0.999), (unsigned long long)h->max,
	       h->count ? h->sum / (double)h->count : 0.0);
}

/* ---- sockets: `--tcp PORT [--host ADDRESS]` (loopback where there is no address) or `--unix PATH` ---- */

UNUSED static void raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

UNUSED static socklen_t address(int argc, char **argv, struct sockaddr_storage *to)
{
	const char *path = option(argc, argv, "unix"), *port = option(argc, argv, "tcp"), *host = option(argc, argv, "host");

	memset(to, 0, sizeof *to);
	if (path) {
		struct sockaddr_un *un = (struct sockaddr_un *)to;

		un->sun_family = AF_UNIX;
		if (strlen(path) >= sizeof un->sun_path)
			die("--unix %s is too long", path);
		strcpy(un->sun_path, path);
		return sizeof *un;
	}
	if (port) {
		struct sockaddr_in *in = (struct sockaddr_in *)to;

		in->sin_family = AF_INET;
		in->sin_port = htons((uint16_t)atoi(port));
		if (inet_pton(AF_INET, host ? host : "127.0.0.1", &in->sin_addr) != 1)
			die("--host %s is not an IPv4 address", host);
		return sizeof *in;
	}
	die("--tcp PORT or --unix PATH is missing");
}

UNUSED static void set_nodelay(int fd)
{
	int on = 1;

	/* Fails for a UNIX socket, which has no delay to take away. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

UNUSED static void set_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		die("fcntl O_NONBLOCK");
}

/* A listening socket, announced on stdout. */
UNUSED static int serve(int argc, char **argv)
{
	struct sockaddr_storage at;
	socklen_t size = address(argc, argv, &at);
	int on = 1, fd = socket(at.ss_family, SOCK_STREAM, 0);

	if (fd < 0)
		die("socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (at.ss_family == AF_UNIX)
		unlink(((struct sockaddr_un *)&at)->sun_path);
	if (bind(fd, (struct sockaddr *)&at, size) < 0)
		die("bind");
	if (listen(fd, 4096) < 0)
		die("listen");
	if (at.ss_family == AF_UNIX) {
		printf("{\"ready\": \"%s\"}\n", ((struct sockaddr_un *)&at)->sun_path);
	} else {
		size = sizeof at;
		if (getsockname(fd, (struct sockaddr *)&at, &size) < 0)
			die("getsockname");
		printf("{\"ready\": %u}\n", ntohs(((struct sockaddr_in *)&at)->sin_port));
	}
	fflush(stdout);
	return fd;
}

UNUSED static int accept_one(int listener)
{
	int fd = accept(listener, NULL, NULL);

	if (fd < 0)
		die("accept");
	return fd;
}

UNUSED static int connect_to(int argc, char **argv)
{
	struct sockaddr_storage to;
	socklen_t size = address(argc, argv, &to);
	int fd = socket(to.ss_family, SOCK_STREAM, 0);

	if (fd < 0)
		die("socket");
	if (connect(fd, (struct sockaddr *)&to, size) < 0)
		die("connect");
	return fd;
}

/* Sends all of it on a blocking socket. */
UNUSED static void send_all(int fd, const void *data, size_t size)
{
	const char *at = data;

	while (size) {
		ssize_t n = send(fd, at, size, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			die("send");
		at += n;
		size -= (size_t)n;
	}
}

/* Receives `size` bytes on a blocking socket; false where the peer has closed before the first of them. */
UNUSED static bool recv_all(int fd, void *data, size_t size)
{
	char *at = data;

	while (size) {
		ssize_t n = recv(fd, at, size, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			die("recv");
		if (n == 0 && at == data)
			return false;
		if (n == 0) {
			errno = 0;
			die("the connection ended inside a message");
		}
		at += n;
		size -= (size_t)n;
	}
	return true;
}

UNUSED static void watch(int epoll, int fd, uint64_t tag)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = tag};

	if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0)
		die("epoll_ctl");
}

UNUSED static int wait_ready(int epoll, struct epoll_event *events, int max)
{
	int n;

	do
		n = epoll_wait(epoll, events, max, -1);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		die("epoll_wait");
	return n;
}

/* Between two looks of who polls. */
UNUSED static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Reads all of it, as a program does that wants what it has received. */
UNUSED static inline void touch(const void *data, size_t size)
{
	const unsigned char *at = data;
	uint64_t sum = 0, word;

	for (; size >= sizeof word; at += sizeof word, size -= sizeof word) {
		memcpy(&word, at, sizeof word);
		sum += word;
	}
	while (size--)
		sum += *at++;
	__asm__ volatile("" : : "r"(sum));
}

UNUSED static void *allocate(size_t size)
{
	void *memory = aligned_alloc(4096, (size + 4095) / 4096 * 4096);

	if (!memory)
		die("no memory");
	memset(memory, 0x5a, size);
	return memory;
}

#endif
