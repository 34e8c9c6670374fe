// This process: signals, standard streams, and the location of its program.
#pragma once
#include <string>

/// Ignores SIGPIPE from now on, so that the run survives a closed standard output (`| head`).
void ignore_sigpipe();

/// Call before files are opened. Keeps the descriptor of a closed standard stream (`>&-`) from being reused for a file; using the stream
/// is still an error.
void reserve_standard_streams();

/// Exit::data if some of standard output could not be written. A reader that has ended is not an error.
void require_printed();

/// From now on SIGINT, SIGTERM, SIGHUP and SIGUSR1 request a stop, unless they were ignored when the program started (nohup,
/// background jobs of a shell). A second SIGINT or SIGTERM ends the process at once. If `seconds` pass after a signal without
/// stop_requested() or note_progress(), the process ends, too; 0: no limit. Both exit with 128 + the signal's number. Without
/// `restart_calls` a signal interrupts a blocked read().
void catch_stop_signals(int seconds, bool restart_calls = true);
inline constexpr int SECONDS_TO_STOP = 5;   // the limit of programs that have nothing to save
bool stop_requested();
void note_progress();

/// Suspends the limit of catch_stop_signals() for its lifetime: one call may sync gigabytes to a slow disk.
struct StopDeadlineSuspended {
    StopDeadlineSuspended();
    ~StopDeadlineSuspended();
};

/// The commit that the program was built from, "1a2b3c4d5e6f", "unknown" outside of git; and whether files differed from it.
const char* source_commit();
bool source_is_dirty();

/// The path of the running program; empty if /proc does not provide it.
std::string program_path();

/// The folder of the running program, for files that come with it (data, scripts).
std::string program_folder();
