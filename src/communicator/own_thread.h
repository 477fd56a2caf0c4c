// Threads of the library itself, beside those of the program.
#pragma once

#include <functional>
#include <thread>

namespace collective_ops {

// Starts `run` in `thread`, with all signals blocked: those belong to the program's own threads. False where
// the limits of the process allow no thread.
bool start_own_thread(std::thread& thread, std::function<void()> run);

}  // namespace collective_ops
