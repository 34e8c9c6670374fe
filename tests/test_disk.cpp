// Small files that are replaced, and paths through links.
#include "model/base/disk.h"
#include "tests/file_size_limit.h"
#include "tests/tiny_run.h"

TEST_CASE("a small file is replaced as a whole or stays as it was", "[disk]") {
    TemporaryFolder folder;
    const fs::path path = folder / "options.toml";
    CHECK(replace_file(path, "steps = 5\n").empty());
    CHECK(replace_file(path, "steps = 6\n").empty());
    CHECK(read_text(path) == "steps = 6\n");
    {
        const FileSizeLimit limit(4);
        CHECK(contains(replace_file(path, "steps = 7\n"), "too large"));
    }
    CHECK(read_text(path) == "steps = 6\n");
    CHECK(names_in(folder.path()) == std::vector<std::string>{"options.toml"});
    CHECK(contains(replace_file(folder / "none/options.toml", "steps = 7\n"), "No such file"));
    CHECK(contains(replace_file(folder.path(), "steps = 7\n"), "directory"));
    CHECK(names_in(folder.path()) == std::vector<std::string>{"options.toml"});
}

TEST_CASE("a path is resolved through its links, up to what does not exist; one that cannot be examined is not guessed", "[disk]") {
    const TemporaryFolder folder;
    const fs::path whole = fs::canonical(folder / ".");
    fs::create_directory(folder / "there");
    fs::create_directory_symlink(whole / "there", folder / "link");
    CHECK(resolved(folder / "link") == whole / "there");
    CHECK(resolved(folder / "link" / "none" / "x") == whole / "there" / "none" / "x");
    fs::create_symlink(folder / "b", folder / "a");
    fs::create_symlink(folder / "a", folder / "b");
    CHECK_THROWS_AS(resolved(folder / "a"), Unreadable);   // too many links, for which EIO would do as well
}
