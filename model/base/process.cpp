#include "model/base/process.h"

#include <csignal>
#include <filesystem>

#include <unistd.h>

static volatile std::sig_atomic_t signals_seen = 0;

static void on_signal(int number) {
    if (number == SIGINT && signals_seen) _exit(128 + SIGINT);
    signals_seen = 1;
}

void outlive_readers() { std::signal(SIGPIPE, SIG_IGN); }

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
