/*
 * stream: how many messages, and how many bytes, go one way in a second.
 *
 *   stream server (--tcp PORT | --unix PATH) [--size 65536] [--touch | --lend] [--cpu N]
 *   stream client (--tcp PORT | --unix PATH) [--size 65536] [--cpu N] [--seconds 1] [--warmup 0.1] [--check]
 *
 * The client sends messages of --size bytes with one blocking send() each; the server receives into a buffer of the same
 * size, or 64 KiB where that is more. At the end the client shuts its half down and the server answers with the number
 * of bytes that arrived: the clock stops when that answer is in, and a number that differs is an error. With --check the
 * bytes carry a pattern that the server verifies, which costs time and is off when measuring. --touch: the server reads what
 * it has received; --lend: it does so where Shunt has the bytes, without a copy (shunt.h). TCP_NODELAY stays off, so
 * that TCP may put small messages together: its best case.
 */
#include "common.h"
#include "../../crates/preload/include/shunt.h"

#define PERIOD 251u /* prime, so that no buffer size is a multiple of the pattern */

static void fill(unsigned char *buffer, size_t size, uint64_t at)
{
	for (size_t i = 0; i < size; i++)
		buffer[i] = (unsigned char)((at + i) % PERIOD);
}

static void server(int argc, char **argv, size_t size)
{
	size_t room = size > 65536 ? size : 65536;
	unsigned char *buffer = allocate(room);
	bool check = flag(argc, argv, "check"), reads = flag(argc, argv, "touch"), lends = flag(argc, argv, "lend");
	int listener = serve(argc, argv), fd = accept_one(listener);
	uint64_t bytes = 0, calls = 0;

	if (lends && !shunt_recv_zc)
		die("--lend is for a program that runs under Shunt");
	for (;;) {
		const void *data = buffer;
		ssize_t n = lends ? shunt_recv_zc(fd, &data, room, 0) : recv(fd, buffer, room, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			die("recv");
		if (n == 0)
			break;
		for (ssize_t i = 0; check && i < n; i++)
			if (((const unsigned char *)data)[i] != (bytes + (uint64_t)i) % PERIOD) {
				errno = 0;
				die("byte %llu is wrong", (unsigned long long)(bytes + (uint64_t)i));
			}
		if (reads || lends)
			touch(data, (size_t)n);
		if (lends && shunt_release(fd, (size_t)n) != 0)
			die("shunt_release");
		bytes += (uint64_t)n;
		calls++;
	}
	send_all(fd, &bytes, sizeof bytes);
	close(fd);
	printf("{\"bytes\": %llu, \"recv_calls\": %llu, \"cpu_ns\": %llu}\n", (unsigned long long)bytes,
	       (unsigned long long)calls, (unsigned long long)cpu_ns());
}

static void client(int argc, char **argv, size_t size)
{
	uint64_t warm = (uint64_t)(number(argc, argv, "warmup", 0.1) * 1e9);
	uint64_t measure = (uint64_t)(number(argc, argv, "seconds", 1) * 1e9);
	/* Looking at the clock costs as much as a small send: look once in 64 KiB. */
	uint64_t stride = size >= 65536 ? 1 : 65536 / size;
	bool check = flag(argc, argv, "check");
	unsigned char *buffer = allocate(size);
	int fd = connect_to(argc, argv);
	uint64_t begin = now_ns(), start = 0, sent = 0, sent_before = 0, arrived = 0, cpu = 0, now;
	double seconds;

	for (;;) {
		for (uint64_t i = 0; i < stride; i++) {
			if (check)
				fill(buffer, size, sent);
			send_all(fd, buffer, size);
			sent += size;
		}
		now = now_ns();
		if (!start && now - begin >= warm) {
			start = now;
			sent_before = sent;
			cpu = cpu_ns();
		} else if (start && now - start >= measure) {
			break;
		}
	}
	if (shutdown(fd, SHUT_WR) < 0)
		die("shutdown");
	if (!recv_all(fd, &arrived, sizeof arrived)) {
		errno = 0;
		die("no answer from the server");
	}
	seconds = (double)(now_ns() - start) / 1e9;
	errno = 0;
	if (arrived != sent)
		die("%llu bytes sent, %llu arrived", (unsigned long long)sent, (unsigned long long)arrived);
	printf("{\"size\": %zu, \"seconds\": %.6f, \"bytes\": %llu, \"bytes_per_second\": %.0f, "
	       "\"messages_per_second\": %.1f, \"cpu_ns\": %llu}\n",
	       size, seconds, (unsigned long long)(sent - sent_before), (double)(sent - sent_before) / seconds,
	       (double)(sent - sent_before) / (double)size / seconds, (unsigned long long)(cpu_ns() - cpu));
	close(fd);
}

int main(int argc, char **argv)
{
	size_t size = (size_t)number(argc, argv, "size", 65536);

	pin_by_option(argc, argv);
	if (argc > 1 && strcmp(argv[1], "server") == 0 && size)
		server(argc, argv, size);
	else if (argc > 1 && strcmp(argv[1], "client") == 0 && size)
		client(argc, argv, size);
	else {
		fprintf(stderr, "usage: stream (server | client) (--tcp PORT | --unix PATH) [--size N] [--touch | --lend] [--cpu N]"
				" [--seconds S] [--warmup S] [--check]\n");
		return 2;
	}
	return 0;
}
