#include "model/device/machine.h"

#include <omp.h>

#include <system_error>
#include <vector>

#include "model/base/error.h"
#include "model/base/options.h"
#include "model/device/blas.h"
#include "tests/catch.h"

TEST_CASE("machine: a thread that cannot be started has its exit code, other errors of the system have none", "[options]") {
    const auto code_of = [](std::errc error) {
        return run_program("a test", [&] { throw std::system_error(std::make_error_code(error)); });
    };
    CHECK(code_of(std::errc::resource_unavailable_try_again) == int(Exit::out_of_memory));
    CHECK(code_of(std::errc::invalid_argument) == 1);
}

TEST_CASE("machine: OpenMP and BLAS get as many threads as a team has") {
    const int before = omp_get_max_threads();
    omp_set_dynamic(1);
    CHECK(use_threads(3, 1) == 3);
    CHECK((omp_get_max_threads() == 3 && !omp_get_dynamic() && omp_get_max_active_levels() == 1));
    omp_set_max_active_levels(0);   // as OMP_MAX_ACTIVE_LEVELS=0: every team has one thread
    CHECK(use_threads(3, 1) == 1);
    CHECK(omp_get_max_threads() == 1);
    const int n = 256;
    std::vector<float> a(n * n, 1), b(n * n, 2), c(n * n);
    gemm(Transpose::no, Transpose::yes, n, n, n, 1.0f, a.data(), n, b.data(), n, 0.0f, c.data(), n);   // would not return
    CHECK((c.front() == 2 * n && c.back() == 2 * n));
    omp_set_max_active_levels(1);
    use_threads(before, 1);
}
