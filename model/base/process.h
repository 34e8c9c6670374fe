// This process: signals, standard streams, and the location of its program.
#pragma once
#include <string>

/// From now on the run survives a closed standard output (`| head`): SIGPIPE is ignored.
void outlive_readers();

/// Call before files are opened: where one of the standard streams is closed (`>&-`), no file takes its place. Using it is still an
/// error.
void reserve_standard_streams();

/// Exit::data if some of standard output could not be written. That its reader has ended is no error.
void require_printed();

/// From now on SIGINT, SIGTERM and SIGUSR1 only set a flag; a second SIGINT ends the process at once.
void catch_stop_signals();
bool stop_requested();

/// The commit that the program was built from, "1a2b3c4d5e6f", "unknown" outside of git; and whether files differed from it. (The
/// Makefile writes both.)
const char* source_commit();
bool source_is_dirty();

/// The path of the running program; empty if /proc does not provide it.
std::string program_path();

/// The folder of the running program, for files that come with it (data, scripts).
std::string program_folder();
