/*
 * pingpong: how long a message takes there and back.
 *
 *   pingpong server (--tcp PORT | --unix PATH) [--size 64] [--epoll | --poll] [--cpu N]
 *   pingpong client (--tcp PORT | --unix PATH) [--size 64] [--epoll | --poll] [--cpu N]
 *                   [--seconds 1] [--warmup 0.2] [--interval-us 0] [--idle SECONDS]
 *
 * One connection, one message under way at a time. The plain form blocks in send() and recv(); with --epoll the socket
 * is non-blocking and epoll_wait() says when to read; with --poll, poll() of this one. --interval-us sleeps between round trips: a client that asks now
 * and then. --idle keeps the connection open without a byte after the measurement and reports the processor time used.
 * The server serves one connection and ends; both print their processor time.
 */
#include "common.h"

#include <poll.h>

struct end {
	int fd, epoll; /* epoll is -1 for blocking calls and poll() */
	bool polls;
};

static struct end make_end(int fd, int argc, char **argv)
{
	struct end end = {fd, -1, flag(argc, argv, "poll")};

	set_nodelay(fd);
	if (end.polls)
		set_nonblocking(fd);
	if (flag(argc, argv, "epoll")) {
		set_nonblocking(fd);
		end.epoll = epoll_create1(0);
		if (end.epoll < 0)
			die("epoll_create1");
		watch(end.epoll, fd, 0);
	}
	return end;
}

/* A message in; false at the end of the connection. */
static bool take(struct end end, char *buffer, size_t size)
{
	struct epoll_event event;
	struct pollfd polled = {end.fd, POLLIN, 0};
	size_t got = 0;

	if (end.epoll < 0 && !end.polls)
		return recv_all(end.fd, buffer, size);
	while (got < size) {
		ssize_t n;

		if (!end.polls)
			wait_ready(end.epoll, &event, 1);
		else if (poll(&polled, 1, -1) < 0 && errno != EINTR)
			die("poll");
		n = recv(end.fd, buffer + got, size - got, 0);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n < 0)
			die("recv");
		if (n == 0)
			return false;
		got += (size_t)n;
	}
	return true;
}

static void give(struct end end, const char *buffer, size_t size)
{
	while (size) {
		ssize_t n = send(end.fd, buffer, size, MSG_NOSIGNAL);

		/* Only a message larger than all buffers on the way gets here: then waiting in a loop is good enough. */
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n < 0)
			die("send");
		buffer += n;
		size -= (size_t)n;
	}
}

static void server(int argc, char **argv, size_t size)
{
	char *buffer = allocate(size);
	int listener = serve(argc, argv);
	struct end end = make_end(accept_one(listener), argc, argv);
	unsigned long long count = 0;

	while (take(end, buffer, size)) {
		give(end, buffer, size);
		count++;
	}
	printf("{\"count\": %llu, \"cpu_ns\": %llu}\n", count, (unsigned long long)cpu_ns());
}

static void client(int argc, char **argv, size_t size)
{
	static struct histogram times;
	uint64_t warm = (uint64_t)(number(argc, argv, "warmup", 0.2) * 1e9);
	uint64_t measure = (uint64_t)(number(argc, argv, "seconds", 1) * 1e9);
	useconds_t interval = (useconds_t)number(argc, argv, "interval-us", 0);
	double idle = number(argc, argv, "idle", 0);
	char *out = allocate(size), *in = allocate(size);
	struct end end = make_end(connect_to(argc, argv), argc, argv);
	uint64_t start = now_ns(), before = start, cpu = 0, began = start;
	uint32_t serial = 0;
	bool measuring = false;

	for (;;) {
		uint64_t after;

		serial++;
		memcpy(out, &serial, size < sizeof serial ? size : sizeof serial);
		give(end, out, size);
		if (!take(end, in, size)) {
			errno = 0;
			die("the server has closed the connection");
		}
		after = now_ns();
		if (memcmp(in, out, size) != 0) {
			errno = 0;
			die("message %u came back changed", serial);
		}
		if (measuring)
			histogram_add(&times, after - before);
		if (!measuring && after - start >= warm) {
			measuring = true;
			began = after;
			cpu = cpu_ns();
		} else if (measuring && after - began >= measure) {
			break;
		}
		before = after;
		if (interval) {
			usleep(interval);
			before = now_ns();
		}
	}
	cpu = cpu_ns() - cpu;
	printf("{");
	histogram_print(&times);
	printf(", \"seconds\": %.6f, \"cpu_ns\": %llu}\n", (double)(now_ns() - began) / 1e9, (unsigned long long)cpu);
	fflush(stdout);
	if (idle > 0) {
		cpu = cpu_ns();
		usleep((useconds_t)(idle * 1e6));
		printf("{\"idle_seconds\": %.3f, \"idle_cpu_ns\": %llu}\n", idle, (unsigned long long)(cpu_ns() - cpu));
	}
	close(end.fd);
}

int main(int argc, char **argv)
{
	size_t size = (size_t)number(argc, argv, "size", 64);

	pin_by_option(argc, argv);
	if (argc > 1 && strcmp(argv[1], "server") == 0 && size)
		server(argc, argv, size);
	else if (argc > 1 && strcmp(argv[1], "client") == 0 && size)
		client(argc, argv, size);
	else {
		fprintf(stderr, "usage: pingpong (server | client) (--tcp PORT | --unix PATH) [--size N] [--epoll | --poll] [--cpu N]"
				" [--seconds S] [--warmup S] [--interval-us N] [--idle S]\n");
		return 2;
	}
	return 0;
}
