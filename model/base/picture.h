// Greyscale images without a library.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

struct Picture {
    int width, height;
    std::vector<uint8_t> grey;   // (height, width): 0 black, 255 white

    Picture(int w, int h, uint8_t all) : width(w), height(h), grey(size_t(w) * h, all) {}
    uint8_t& at(int x, int y) { return grey[size_t(y) * width + x]; }
};

/// Exit::usage unless the name ends in .png or .pgm.
void require_picture_name(const std::string& path);

/// Writes a PNG or a portable graymap, by the extension .png or .pgm. Exit::usage for other extensions or if the file cannot be
/// written.
void write_picture(const std::string& path, const Picture& picture);

/// Precondition: all pictures have the same size. Arranges them row by row in a nearly square grid, with lines between them.
Picture side_by_side(const std::vector<Picture>& pictures);
