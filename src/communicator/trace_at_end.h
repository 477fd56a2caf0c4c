// What becomes of the ranks' trace files once the last rank has left.
#pragma once

#include <filesystem>
#include <string>

namespace collective_ops {

// Makes comm_trace.json of them. Where that was written since this program began, by a job that has ended
// before (a program may leave and join again, or take part in several jobs), it stays, and this one is
// comm_trace.2.json and so on. Where merging fails the ranks' files stay, and can still be merged by hand.
//
// Of a job on several hosts the last rank of each host asks for it: the last of them all merges; where hosts
// have a directory each, every host's ranks go to comm_trace.HOST.json there, and their files stay.
void merge_trace_at_end(const std::string& job, const std::filesystem::path& directory, bool several_hosts);

}  // namespace collective_ops
