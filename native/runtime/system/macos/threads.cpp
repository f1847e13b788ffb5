#include <pthread.h>
#include <pthread/qos.h>

#include "runtime/system/system.h"

namespace sterna {

// The kernel's own call for it is public from macOS 14.4 on; the library waits as well.
void system::sleep_while_equal(std::atomic<uint32_t>& word, uint32_t old) { word.wait(old); }

void system::wake_all(std::atomic<uint32_t>& word) { word.notify_all(); }

// The class of work that a user waits for runs on the fast cores as long as they are free.
void system::begin_worker() { pthread_set_qos_class_self_np(QOS_CLASS_USER_INITIATED, 0); }

}  // namespace sterna
