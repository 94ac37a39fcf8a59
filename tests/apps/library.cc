// A C++ library that uses a connection in its constructor and destructor, and in a thread_local's destructor. It finds the connection's
// number in the environment (SOCKET), makes it itself (ADDRESS, PORT), or is told it by library_use().
#include <arpa/inet.h>
#include <cstdlib>
#include <cstring>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {
int number = -1;

// Where these are, the dynamic linker writes once, and then nobody.
struct Calls {
    ssize_t (*send)(int, const void *, size_t, int);
    ssize_t (*recv)(int, void *, size_t, int);
};
extern const Calls calls;
const Calls calls = {send, recv};

// One request and its answer; the other side sends back what it gets.
void talk(const char *text) {
    char back[32];
    size_t length = strlen(text);
    if (number < 0) return;
    if (send(number, text, length, MSG_NOSIGNAL) != static_cast<ssize_t>(length)) _exit(41);
    if (calls.recv(number, back, length, MSG_WAITALL) != static_cast<ssize_t>(length)) _exit(42);
    if (memcmp(text, back, length) != 0) _exit(43);
}

struct Library {
    Library() {
        if (const char *text = getenv("SOCKET")) number = atoi(text);
        if (const char *text = getenv("PORT")) {
            sockaddr_in to{};
            to.sin_family = AF_INET;
            to.sin_port = htons(atoi(text));
            inet_pton(AF_INET, getenv("ADDRESS"), &to.sin_addr);
            number = socket(AF_INET, SOCK_STREAM, 0);
            if (connect(number, reinterpret_cast<sockaddr *>(&to), sizeof to) != 0) _exit(40);
            for (int i = 0; i < 200; i++) talk("long constructor");
        }
        talk("constructor");
    }
    ~Library() {
        for (int i = 0; i < 50; i++) talk("destructor");
    }
};
Library library;

struct Thread {
    int rounds = 0;
    ~Thread() {
        for (int i = 0; i < rounds; i++) talk("thread's end");
    }
};
thread_local Thread thread;
}

extern "C" void library_use(int fd, int rounds) {
    number = fd;
    thread.rounds = rounds;
    for (int i = 0; i < rounds; i++) talk("library");
}
