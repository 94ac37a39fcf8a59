/*
 * busy: keeps a processor busy with arithmetic until it is killed, or for --seconds; the neighbour that a program on an
 * oversubscribed machine has to live with.
 */
#include "common.h"

int main(int argc, char **argv)
{
	double seconds = number(argc, argv, "seconds", 1e9);
	uint64_t start = now_ns();
	volatile uint64_t work = 1;

	pin_by_option(argc, argv);
	while ((double)(now_ns() - start) < seconds * 1e9)
		for (int i = 0; i < 100000; i++)
			work = work * 6364136223846793005u + 1442695040888963407u;
	return 0;
}
