/* Whether a connection has yet to move to memory: for who goes on with it until it has. */
#pragma once
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Only Shunt's library has it: which ways a connection goes; 3 is both by memory. */
__attribute__((weak)) int shunt_path(int fd);

static inline bool yet_to_move(int fd) {
    const char *path = getenv("SHUNT_PATH");
    return shunt_path && shunt_path(fd) != 3 && !(path && strcmp(path, "tcp") == 0);
}
