// --log: what a run of ./generate has measured, for programs; tell() (write_prompts.cuh) says it to people.
#pragma once
#include <vector>

#include "attention/inference/reader.h"
#include "model/base/error.h"
#include "model/generate/write_texts.h"
#include "model/run/report.h"

/// The one record of `log`, which is complete with it. `where`: device, machine and weights. `kept_bytes`: 0 where nothing is kept of a
/// text, so that each token takes a pass over all of it. Exit::data if it cannot be written.
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
