/*
 * shortconn: connections that live for one request: connect, send, receive, close.
 *
 *   shortconn server (--tcp PORT | --unix PATH) [--size 64] [--cpu N]
 *   shortconn client (--tcp PORT | --unix PATH) [--size 64] [--cpu N] [--seconds 1] [--warmup 0.1]
 *
 * One connection at a time. The client leaves from a different loopback address each time (127.0.0.2, .3, ...), so that
 * ports waiting in TIME_WAIT do not run out. The server ends when it is killed.
 */
#include "common.h"

#define ADDRESSES 200

static void server(int argc, char **argv, size_t size)
{
	char *buffer = allocate(size);
	int listener = serve(argc, argv);

	for (;;) {
		int fd = accept_one(listener);

		set_nodelay(fd);
		while (recv_all(fd, buffer, size))
			send_all(fd, buffer, size);
		close(fd);
	}
}

static int connect_from(int argc, char **argv, unsigned turn)
{
	struct sockaddr_storage to;
	socklen_t length = address(argc, argv, &to);
	int on = 1, fd = socket(to.ss_family, SOCK_STREAM, 0);

	if (fd < 0)
		die("socket");
	if (to.ss_family == AF_INET) {
		struct sockaddr_in from = {.sin_family = AF_INET};

		from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + turn % ADDRESSES);
		setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
		if (bind(fd, (struct sockaddr *)&from, sizeof from) < 0)
			die("bind");
	}
	if (connect(fd, (struct sockaddr *)&to, length) < 0)
		die("connect");
	set_nodelay(fd);
	return fd;
}

static void client(int argc, char **argv, size_t size)
{
	static struct histogram times;
	uint64_t warm = (uint64_t)(number(argc, argv, "warmup", 0.1) * 1e9);
	uint64_t measure = (uint64_t)(number(argc, argv, "seconds", 1) * 1e9);
	char *buffer = allocate(size);
	uint64_t start = now_ns(), before = start, after = start, began = 0, cpu = 0;
	double seconds;

	for (unsigned turn = 0; !began || after - began < measure; turn++) {
		int fd = connect_from(argc, argv, turn);

		send_all(fd, buffer, size);
		if (!recv_all(fd, buffer, size)) {
			errno = 0;
			die("the server has closed the connection");
		}
		close(fd);
		after = now_ns();
		if (began)
			histogram_add(&times, after - before);
		else if (after - start >= warm) {
			began = after;
			cpu = cpu_ns();
		}
		before = after;
	}
	seconds = (double)(after - began) / 1e9;
	printf("{\"per_second\": %.1f, \"cpu_ns\": %llu, ", (double)times.count / seconds,
	       (unsigned long long)(cpu_ns() - cpu));
	histogram_print(&times);
	printf("}\n");
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
		fprintf(stderr, "usage: shortconn (server | client) (--tcp PORT | --unix PATH) [--size N] [--cpu N]"
				" [--seconds S] [--warmup S]\n");
		return 2;
	}
	return 0;
}
