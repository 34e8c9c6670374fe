#include "model/base/picture.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include "model/base/error.h"

// ---- PNG: chunks of length, type, data, CRC-32 of type and data; the pixels are a zlib stream of "stored" blocks of up to 65535
// uncompressed bytes. Larger files, but no compressor needed.

static std::string big_endian(uint32_t n) { return {char(n >> 24), char(n >> 16), char(n >> 8), char(n)}; }
static std::string little_endian(uint32_t n) { return {char(n), char(n >> 8)}; }

static uint32_t crc32(const std::string& bytes) {
    uint32_t crc = ~0u;
    for (unsigned char byte : bytes) {
        crc ^= byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}
static uint32_t adler32(const std::string& bytes) {
    uint32_t a = 1, b = 0;
    for (unsigned char byte : bytes) a = (a + byte) % 65521, b = (b + a) % 65521;
    return b << 16 | a;
}

static std::string chunk(const std::string& type, const std::string& data) {
    return big_endian(uint32_t(data.size())) + type + data + big_endian(crc32(type + data));
}

static std::string stored(const std::string& bytes) {
    std::string stream = "\x78\x01";
    for (size_t at = 0; at < bytes.size(); at += 65535) {
        const auto n = uint32_t(std::min<size_t>(65535, bytes.size() - at));
        stream += char(at + n == bytes.size());
        stream += little_endian(n) + little_endian(~n & 0xffff);
        stream.append(bytes, at, n);
    }
    return stream + big_endian(adler32(bytes));
}

static std::string png(const Picture& p) {
    const std::string form{8, 0, 0, 0, 0};   // bits, grey, zlib, no prediction, not interlaced
    std::string rows;
    for (int y = 0; y < p.height; y++) {
        rows += '\0';   // no filter
        rows.append(reinterpret_cast<const char*>(&p.grey[size_t(y) * p.width]), p.width);
    }
    return "\x89PNG\r\n\x1a\n" + chunk("IHDR", big_endian(p.width) + big_endian(p.height) + form) + chunk("IDAT", stored(rows)) +
           chunk("IEND", "");
}

static std::string pgm(const Picture& p) {
    return "P5\n" + std::to_string(p.width) + " " + std::to_string(p.height) + "\n255\n" + std::string(p.grey.begin(), p.grey.end());
}

void require_picture_name(const std::string& path) {
    if (!path.ends_with(".png") && !path.ends_with(".pgm")) fail(Exit::usage, path, ": a picture's name must end in .png or .pgm");
}

void write_picture(const std::string& path, const Picture& picture) {
    require_picture_name(path);
    const std::string bytes = path.ends_with(".pgm") ? pgm(picture) : png(picture);
    std::ofstream file(path, std::ios::binary);
    file.write(bytes.data(), std::streamsize(bytes.size()));
    if (file.flush()) return;
    const std::string reason = last_os_error();
    std::error_code ignored;
    if (file.is_open() && std::filesystem::is_regular_file(path, ignored)) std::filesystem::remove(path, ignored);   // half of it is no picture
    fail(Exit::data, path, ": the picture cannot be written (", reason, ")");
}

Picture side_by_side(const std::vector<Picture>& pictures) {
    const int count = int(pictures.size()), columns = int(std::ceil(std::sqrt(count))), rows = (count + columns - 1) / columns;
    const int line = 4, w = pictures[0].width + line, h = pictures[0].height + line;
    Picture all(columns * w - line, rows * h - line, 160);
    for (int n = 0; n < count; n++)
        for (int y = 0; y < pictures[n].height; y++)
            for (int x = 0; x < pictures[n].width; x++)
                all.at(n % columns * w + x, n / columns * h + y) = pictures[n].grey[size_t(y) * pictures[n].width + x];
    return all;
}
