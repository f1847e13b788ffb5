#include <cstdint>
#include <cstdio>
#include <filesystem>

#include "files/mapped_file.h"
#include "runtime/system/system.h"
#include "testing/core/checks.h"
#include "testing/core/faults.h"

namespace sterna::testing {
namespace {

constexpr size_t kBytes = (size_t{3} << 20) + 77;

struct File {
    explicit File(const std::string& name)
        : path((std::filesystem::temp_directory_path() / name).string()),
          stream(std::fopen(path.c_str(), "w+b")) {
        require(stream != nullptr, "a file can be made");
        for (size_t i = 0; i < kBytes; ++i) std::fputc(byte(i), stream);
        std::fflush(stream);
    }
    ~File() {
        std::fclose(stream);
        std::filesystem::remove(path);
    }
    system::File file() const { return file_of(stream); }
    static uint8_t byte(size_t i) { return static_cast<uint8_t>(i * 7 + i / 4096); }

    const std::string path;
    std::FILE* const stream;
};

bool is_changed(const MappedFile& file) {
    try {
        file.require_whole();
    } catch (const ChangedFile&) {
        return true;
    }
    return false;
}

}  // namespace

std::string check_mapped_files() {
    const File file("sterna-core-test.bin");
    bool refused = false;
    try {
        const MappedFile mapped(file.file(), kBytes + 1, file.path);
    } catch (const ChangedFile&) {
        refused = true;
    }
    require(refused, "another length is refused");
    {
        const MappedFile mapped(file.file(), kBytes, file.path);
        for (size_t i = 0; i < kBytes; ++i)
            require(mapped.data()[i] == File::byte(i), "a mapping has what the file has");
        require(!is_changed(mapped), "a mapping is whole");
        require(MappedFile::of(mapped.data() + kBytes - 1) == &mapped, "an address is found");
        require(MappedFile::of(&mapped) != &mapped, "another one is not");
        std::fseek(file.stream, 0, SEEK_END);
        std::fputc('x', file.stream);
        std::fflush(file.stream);
        require(is_changed(mapped), "a file that has grown is noticed");
    }
    const File second("sterna-core-test-2.bin");
    const MappedFile lost(second.file(), kBytes, second.path);
    lose_page(second.file(), lost.data());
    uint32_t sum = 0;
    for (size_t i = 0; i < kBytes; ++i) sum += lost.data()[i];
    require(sum == 0, "zeros stand for what is lost");
    require(is_changed(lost), "a loss is noticed");
    return "lengths, changes, lost pages";
}

}  // namespace sterna::testing
