/* A program that does nothing, and calls no function of sockets: what it does with a library in LD_PRELOAD, the library does. */
int main(void) {
    return 0;
}
