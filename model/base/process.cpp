#include "model/base/process.h"

#include <csignal>
#include <cstdio>
#include <filesystem>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/base/error.h"

static volatile std::sig_atomic_t signals_seen = 0;

static void on_signal(int number) {
    if (number == SIGINT && signals_seen) _exit(128 + SIGINT);
    signals_seen = 1;
}

void outlive_readers() { std::signal(SIGPIPE, SIG_IGN); }

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

void catch_stop_signals() {
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    for (int number : {SIGINT, SIGTERM, SIGUSR1}) sigaction(number, &action, nullptr);
}

bool stop_requested() { return signals_seen != 0; }

std::string program_folder() {
    const std::filesystem::path path = program_path();
    return path.empty() ? "." : path.parent_path().string();
}

std::string program_path() {
    std::error_code unknown;
    return std::filesystem::read_symlink("/proc/self/exe", unknown).string();
}
