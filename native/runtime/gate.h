// A gate that one thread opens, once, and others wait at.
#pragma once
#include "runtime/pool.h"

namespace sterna {

class Gate {
  public:
    // Writes before open() are visible to threads that have passed.
    void open() { opened_.advance(); }
    void pass() { opened_.wait_past(0, kSpinNs); }

  private:
    // The opening thread may need this CPU.
    static constexpr int64_t kSpinNs = 20'000;

    WaitWord opened_;
};

}  // namespace sterna
