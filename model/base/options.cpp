#include "model/base/options.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <new>
#include <numeric>
#include <system_error>

#include "model/base/error.h"
#include "model/base/process.h"

// Levenshtein distance: insertions, deletions and replacements that turn a into b.
static size_t edit_distance(const std::string& a, const std::string& b) {
    std::vector<size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
        }
    }
    return row.back();
}

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
    size_t fewest = std::max<size_t>(2, word.size() / 3) + 1;
    std::string best;
    for (const std::string& candidate : candidates) {
        const size_t distance = edit_distance(word, candidate);
        if (distance >= fewest) continue;
        fewest = distance;
        best = candidate;
    }
    return best;
}

void require_two_files(const char* option, const std::string& file, const char* other_option, const std::string& other) {
    if (file.empty() || other.empty()) return;
    std::error_code no_file;
    const auto whole = [](const std::string& path) { return std::filesystem::absolute(path).lexically_normal(); };
    const bool same = std::filesystem::equivalent(file, other, no_file) || whole(file) == whole(other);
    if (same) fail(Exit::usage, option, " ", file, " is the file of ", other_option, "; give another");
}

int run_program(const std::string& program, const std::function<void()>& body) {
    const auto complain = [&](const std::string& sentence) {
        if (!sentence.empty()) std::cerr << program << ": error: " << sentence << std::endl;
    };
    reserve_standard_streams();
    std::signal(SIGXFSZ, SIG_IGN);   // a write past the limit on file size (ulimit -f) fails with EFBIG, as on a full disk with ENOSPC
    try {
        body();
        return static_cast<int>(Exit::done);
    } catch (const Error& error) {
        complain(error.what());
        return static_cast<int>(error.code);
    } catch (const std::bad_alloc&) {
        complain("out of memory");
        return static_cast<int>(Exit::out_of_memory);
    } catch (const std::filesystem::filesystem_error& error) {   // a file whose state could not be read
        complain(error.path1().string() + ": " + error.code().message());
        return static_cast<int>(Exit::data);
    } catch (const std::system_error& error) {   // a limit of the user or the container
        const bool no_thread = error.code() == std::errc::resource_unavailable_try_again;
        complain(no_thread ? "another thread cannot be started; raise the limit on processes (ulimit -u), or lower --threads"
                           : error.what());
        return no_thread ? static_cast<int>(Exit::out_of_memory) : 1;
    } catch (const std::exception& error) {
        complain(error.what());
        return 1;
    }
}
