#include "model/base/process.h"

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/base/error.h"

// Signal handlers read and write these; all are lock-free.
static std::atomic<int> stop_signal{0};            // the first stop signal; 0: none
static std::atomic<int64_t> insisted{0};           // when the first SIGINT or SIGTERM came, in milliseconds
static std::atomic<int> patience{0}, quiet{0};     // limit, and seconds without progress since the signal
static std::atomic<int> deadlines_suspended{0};
static char deadline_message[100];

static int64_t milliseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

/// A second SIGINT or SIGTERM ends the process. timeout(1) sends each signal twice, to the process and to its group: what comes
/// within 0.3 s counts as one.
static void on_stop_signal(int number) {
    int64_t none = 0;
    const int64_t now = milliseconds();
    const bool insists = number == SIGINT || number == SIGTERM;
    if (insists && !insisted.compare_exchange_strong(none, now) && now - none > 300) _exit(128 + number);
    int first = 0;
    if (stop_signal.compare_exchange_strong(first, number)) quiet = 0, alarm(1);
}

static void on_tick(int) {
    if (deadlines_suspended > 0) quiet = 0;
    if (patience == 0 || quiet++ < patience) {
        alarm(1);
        return;
    }
    pollfd out = {STDERR_FILENO, POLLOUT, 0};   // a pipe that its reader has left full must not block the exit
    if (poll(&out, 1, 0) == 1 && write(STDERR_FILENO, deadline_message, std::strlen(deadline_message)) < 0) {}
    _exit(128 + stop_signal);
}

void ignore_sigpipe() { std::signal(SIGPIPE, SIG_IGN); }

void reserve_standard_streams() {
    for (int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})   // in this order: open() takes the lowest that is free
        if (fcntl(descriptor, F_GETFD) < 0) open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

void require_printed() {
    if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return;
    struct stat info;
    const bool has_reader = fstat(STDOUT_FILENO, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode));
    if (!has_reader) fail(Exit::data, "standard output cannot be written; is its disk full?");
}

void catch_stop_signals(int seconds, bool restart_calls) {
    std::snprintf(deadline_message, sizeof deadline_message, "stopped by a signal: no progress for %d s; unfinished work is lost\n",
                  seconds);
    patience = seconds;
    struct sigaction action {}, before {};
    action.sa_flags = SA_RESTART;
    action.sa_handler = on_tick;
    sigaction(SIGALRM, &action, nullptr);
    action.sa_flags = restart_calls ? SA_RESTART : 0;
    action.sa_handler = on_stop_signal;
    for (int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1})
        if (sigaction(number, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
}

bool stop_requested() {
    note_progress();
    return stop_signal != 0;
}

void note_progress() { quiet = 0; }

StopDeadlineSuspended::StopDeadlineSuspended() { deadlines_suspended++; }
StopDeadlineSuspended::~StopDeadlineSuspended() { deadlines_suspended--; }

std::string program_folder() {
    const std::filesystem::path path = program_path();
    return path.empty() ? "." : path.parent_path().string();
}

std::string program_path() {
    std::error_code unknown;
    return std::filesystem::read_symlink("/proc/self/exe", unknown).string();
}
