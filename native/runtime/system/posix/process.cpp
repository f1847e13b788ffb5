#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "runtime/system/system.h"

namespace sterna {
namespace {

void write_all(int to, const std::string& text) {
    for (size_t at = 0; at < text.size();) {
        const ssize_t n = write(to, text.data() + at, text.size() - at);
        if (n <= 0) _exit(1);
        at += static_cast<size_t>(n);
    }
}

std::string read_all(int from) {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = read(from, buffer, sizeof buffer)) != 0;) {
        if (n > 0) {
            text.append(buffer, static_cast<size_t>(n));
        } else if (errno != EINTR) {
            break;
        }
    }
    return text;
}

}  // namespace

system::SignalsBlocked::SignalsBlocked() {
    static_assert(sizeof(sigset_t) <= sizeof saved_);
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGPROF})
        sigdelset(&blocked, fault);
    pthread_sigmask(SIG_SETMASK, &blocked, reinterpret_cast<sigset_t*>(saved_));
}

system::SignalsBlocked::~SignalsBlocked() {
    pthread_sigmask(SIG_SETMASK, reinterpret_cast<const sigset_t*>(saved_), nullptr);
}

int64_t system::process_id() { return getpid(); }

std::optional<system::Apart> system::run_apart(std::string (*function)(const void*),
                                               const void* argument) {
    int ends[2];
    if (pipe(ends)) return {};
    const pid_t child = fork();
    if (child < 0) {
        ::close(ends[0]), ::close(ends[1]);
        return {};
    }
    if (child == 0) {
        const rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        ::close(ends[0]);
        write_all(ends[1], function(argument));
        _exit(0);
    }
    ::close(ends[1]);
    Apart apart;
    apart.result = read_all(ends[0]);
    ::close(ends[0]);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFSIGNALED(status)) apart.signal = WTERMSIG(status);
    return apart;
}

}  // namespace sterna
