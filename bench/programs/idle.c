/*
 * idle: what many idle connections cost the active ones.
 *
 *   idle server (--tcp PORT | --unix PATH) [--cpu N]
 *   idle client (--tcp PORT | --unix PATH) [--cpu N] [--connections 10000] [--active 50] [--size 64]
 *               [--seconds 2] [--touch 32] [--step]
 *
 * The server echoes whatever comes on any connection, all of them in one epoll set. The client first opens the active
 * connections and measures how many round trips a second they make when alone, then opens the rest, uses each for
 * --touch round trips, leaves them open without a byte, and measures the active ones again. It prints a line for each
 * phase ("alone", "crowd"); with --step it then waits for a line on stdin, while someone else looks at the memory of
 * both processes; the wait after "crowd" is in "quiet", with no traffic at all.
 */
#include "common.h"

#define EVENTS 256
#define MAX_SIZE 65536

static void server(int argc, char **argv)
{
	static char buffer[MAX_SIZE];
	struct epoll_event events[EVENTS];
	int listener = serve(argc, argv), epoll = epoll_create1(0);

	if (epoll < 0)
		die("epoll_create1");
	set_nonblocking(listener);
	watch(epoll, listener, (uint64_t)listener);
	for (;;) {
		int ready = wait_ready(epoll, events, EVENTS);

		for (int i = 0; i < ready; i++) {
			int fd = (int)events[i].data.u64;
			ssize_t n;

			if (fd == listener) {
				while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
					set_nodelay(fd);
					watch(epoll, fd, (uint64_t)fd);
				}
				if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)
					die("accept");
				continue;
			}
			n = recv(fd, buffer, sizeof buffer, 0);
			if (n > 0)
				n = send(fd, buffer, (size_t)n, MSG_NOSIGNAL);
			if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
				close(fd);
		}
	}
}

/* Keeps one message under way on each of the active connections; returns round trips in a second. */
static double echo(int epoll, const int *fds, int active, size_t size, double seconds, struct histogram *times)
{
	static char buffer[MAX_SIZE];
	struct epoll_event events[EVENTS];
	uint64_t *sent = calloc((size_t)active, sizeof *sent), *got = calloc((size_t)active, sizeof *got);
	uint64_t start = now_ns(), now = start, count = 0;
	int under_way = active;

	if (!sent || !got)
		die("no memory");
	memset(times, 0, sizeof *times);
	for (int i = 0; i < active; i++) {
		sent[i] = now_ns();
		send_all(fds[i], buffer, size);
	}
	while (under_way) {
		int ready = wait_ready(epoll, events, EVENTS);

		for (int i = 0; i < ready; i++) {
			uint64_t which = events[i].data.u64;
			ssize_t n = recv(fds[which], buffer, size - got[which], MSG_DONTWAIT);

			if (n < 0 && (errno == EAGAIN || errno == EINTR))
				continue;
			if (n <= 0)
				die("recv on connection %llu", (unsigned long long)which);
			got[which] += (uint64_t)n;
			if (got[which] < size)
				continue;
			got[which] = 0;
			now = now_ns();
			histogram_add(times, now - sent[which]);
			count++;
			if ((double)(now - start) >= seconds * 1e9) {
				under_way--;
				continue;
			}
			sent[which] = now;
			send_all(fds[which], buffer, size);
		}
	}
	free(sent);
	free(got);
	return (double)count / ((double)(now - start) / 1e9);
}

static void report(const char *phase, int connections, int active, double rate, const struct histogram *times)
{
	printf("{\"phase\": \"%s\", \"connections\": %d, \"active\": %d, \"per_second\": %.1f, \"cpu_ns\": %llu, ", phase,
	       connections, active, rate, (unsigned long long)cpu_ns());
	histogram_print(times);
	printf("}\n");
	fflush(stdout);
}

/* It waits as it does for its connections: in epoll_wait(). */
static void step(int argc, char **argv, int epoll)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = STDIN_FILENO};
	char line[64];

	if (!flag(argc, argv, "step"))
		return;
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, STDIN_FILENO, &event) == 0) {
		while (epoll_wait(epoll, &event, 1, -1) < 0 && errno == EINTR)
			;
		epoll_ctl(epoll, EPOLL_CTL_DEL, STDIN_FILENO, NULL);
	}
	if (!fgets(line, sizeof line, stdin))
		exit(0);
}

static void client(int argc, char **argv)
{
	static struct histogram times;
	static char buffer[MAX_SIZE];
	int connections = (int)number(argc, argv, "connections", 10000), active = (int)number(argc, argv, "active", 50);
	int touch = (int)number(argc, argv, "touch", 32), epoll = epoll_create1(0);
	size_t size = (size_t)number(argc, argv, "size", 64);
	double seconds = number(argc, argv, "seconds", 2), rate;
	int *fds;

	errno = 0;
	if (active < 1 || connections < active || !size || size > MAX_SIZE)
		die("there must be active connections, no more than all, and messages of 1 to %d bytes", MAX_SIZE);
	fds = calloc((size_t)connections, sizeof *fds);
	if (epoll < 0 || !fds)
		die("epoll_create1");
	for (int i = 0; i < connections; i++) {
		fds[i] = connect_to(argc, argv);
		set_nodelay(fds[i]);
		for (int turn = 0; turn < touch; turn++) {
			send_all(fds[i], buffer, size);
			if (!recv_all(fds[i], buffer, size))
				die("connection %d was closed", i);
		}
		watch(epoll, fds[i], (uint64_t)i);
		if (i + 1 == active) {
			echo(epoll, fds, active, size, seconds / 10, &times);
			rate = echo(epoll, fds, active, size, seconds, &times);
			report("alone", active, active, rate, &times);
			step(argc, argv, epoll);
		}
	}
	echo(epoll, fds, active, size, seconds / 10, &times);
	rate = echo(epoll, fds, active, size, seconds, &times);
	report("crowd", connections, active, rate, &times);
	step(argc, argv, epoll);
}

int main(int argc, char **argv)
{
	raise_descriptor_limit();
	pin_by_option(argc, argv);
	if (argc > 1 && strcmp(argv[1], "server") == 0)
		server(argc, argv);
	else if (argc > 1 && strcmp(argv[1], "client") == 0)
		client(argc, argv);
	else {
		fprintf(stderr, "usage: idle (server | client) (--tcp PORT | --unix PATH) [--cpu N] [--connections N]"
				" [--active N] [--size N] [--seconds S] [--touch N] [--step]\n");
		return 2;
	}
	return 0;
}
