// --log: the measurements of a run of ./generate as JSON. (print_times() in write_prompts.cuh prints them.)
#pragma once
#include <vector>

#include "attention/inference/reader.h"
#include "model/base/error.h"
#include "model/generate/write_texts.h"
#include "model/run/report.h"

/// Writes the only record of `log` and finishes the file. `where`: device, machine and weights. `kept_bytes`: bytes of the KV cache; 0
/// without one, when each token takes a pass over the whole text. Exit::data if the file cannot be written.
inline void log_writing(JsonLines& log, const std::vector<JsonLines::Field>& where, const WritingTimes& times, size_t kept_bytes,
                        const InferenceCount& read) {
    std::vector<JsonLines::Field> fields = {{"event", "writing"},
                                            {"texts", int64_t(times.texts)},
                                            {"prompt_tokens", int64_t(times.prompt_tokens)},
                                            {"reading_seconds", times.reading},
                                            {"later_tokens", int64_t(times.later_tokens())},
                                            {"writing_seconds", times.writing},
                                            {"cache_bytes", int64_t(kept_bytes)}};
    append(fields, of_program());
    append(fields, where);
    if (read.psa.rows > 0 || read.adaspa.heads > 0)
        append(fields, {{"pairs_read", read.pairs_read()}, {"mass_kept", read.mass_kept()}});
    log.write(fields);
    log.finish();
    if (log.failed()) fail(Exit::data, "--log: could not be written completely");
}
