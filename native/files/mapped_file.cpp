#include "files/mapped_file.h"

#include <atomic>
#include <cerrno>
#include <system_error>

namespace sterna {

// The handler's view of a mapping. Slots are never freed: a fault may come at any moment.
struct MappedFile::Slot {
    std::atomic<uintptr_t> begin{0}, end{0};  // none where `end` is 0
    std::atomic<bool> damaged{false};
    const MappedFile* file = nullptr;

    bool holds(uintptr_t address) const {
        return address < end.load(std::memory_order_acquire) &&
               address >= begin.load(std::memory_order_relaxed);
    }
};

// All slots, and the handler of faults.
struct MappedFile::Slots {
    static Slot all[1024];
    static int used;

    static bool on_fault(uintptr_t address) {
        for (auto& slot : all) {
            if (!slot.holds(address)) continue;
            const uintptr_t begin = slot.begin, end = slot.end;
            slot.damaged = true;  // before anyone can read a zero
            return system::replace_by_zeros(begin, end - begin);
        }
        return false;
    }
};

MappedFile::Slot MappedFile::Slots::all[1024];
int MappedFile::Slots::used = 0;

MappedFile::MappedFile(system::File file, size_t bytes, const std::string& path)
    : path_(path), bytes_(bytes) {
    for (auto& slot : Slots::all)
        if (!slot.end && !slot_) slot_ = &slot;
    if (!slot_) throw std::system_error(EMFILE, std::generic_category(), path);
    file_ = system::duplicate(file);
    try {
        state_ = system::state_of(file_);
        if (state_.bytes != bytes) throw ChangedFile(path);
        data_ = system::map_file(file_, bytes);
    } catch (...) {
        system::close(file_);
        throw;
    }
    slot_->file = this;
    slot_->damaged = false;
    slot_->begin = reinterpret_cast<uintptr_t>(data_);
    slot_->end.store(slot_->begin + bytes, std::memory_order_release);
    ++Slots::used;
    system::watch_faults(&Slots::on_fault);
}

MappedFile::~MappedFile() {
    slot_->end = 0;
    system::unmap_file(data_, bytes_);
    system::close(file_);
    if (--Slots::used == 0) system::unwatch_faults();
}

void MappedFile::require_whole() const {
    bool same;
    try {
        same = system::state_of(file_) == state_;
    } catch (const std::system_error&) {
        same = false;
    }
    if (!same) slot_->damaged = true;  // permanently, even if the file is restored
    if (slot_->damaged) throw ChangedFile(path_);
}

const MappedFile* MappedFile::of(const void* address) {
    for (const auto& slot : Slots::all)
        if (slot.holds(reinterpret_cast<uintptr_t>(address))) return slot.file;
    return nullptr;
}

}  // namespace sterna
