// Texts of the source tree that a checkpoint carries. scripts/carried_texts.sh makes the unit with them.
#pragma once
#include <vector>

struct CarriedText {
    const char* name;
    const char* text;
};

/// The Python files with which transformers opens our variants, by their names in the folder.
const std::vector<CarriedText>& modeling_files();

/// The comment at the top of each variant's file, by the variant's name: source, formula, assumptions.
const std::vector<CarriedText>& descriptions_of_variants();
