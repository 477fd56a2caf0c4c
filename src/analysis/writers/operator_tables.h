// Tables of operators, communication and messages as CSV; docs/analysis.md lists their columns and units.
#pragma once

#include <filesystem>
#include <vector>

#include <collective_ops/status.h>

#include "analysis/communication_classes.h"
#include "analysis/messages.h"
#include "analysis/operator_table.h"

namespace collective_ops {

Status write_operator_time(const std::vector<OperatorRow>& rows, const std::filesystem::path& path);
Status write_compute_types(const std::vector<OperatorRow>& rows, const std::filesystem::path& path);
Status write_communication(const std::vector<CommunicationClass>& rows, const std::filesystem::path& path);
Status write_messages(const std::vector<MessageRoute>& routes, const std::filesystem::path& path);
Status write_temporal_breakdown(const ProfileSet& set, const std::filesystem::path& path);

}  // namespace collective_ops
