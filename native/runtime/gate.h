// A gate that one thread opens, once, and others wait at.
#pragma once
#include "runtime/pool.h"

namespace sterna {

class Gate {
  public:
    // What was written before is visible to those who have passed.
    void open() { opened_.advance(); }
    void pass() { opened_.wait_past(0, kSpinNs); }

  private:
    // Who opens it may need this CPU.
    static constexpr int64_t kSpinNs = 20'000;

    WaitWord opened_;
};

}  // namespace sterna
