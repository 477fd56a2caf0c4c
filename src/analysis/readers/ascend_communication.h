// communication.json and communication_matrix.json of an Ascend profile. Broken text is a note of the
// profile; what precedes the break is used.
#pragma once

#include <string_view>

#include "analysis/profile.h"

namespace collective_ops {

void read_communication(std::string_view text, RankProfile* profile);  // operators, calls
// Takes over an operator and makes a call of it; the caller sorts the calls by start.
void add_operator(CommunicationOperator op, RankProfile* profile);
void read_communication_matrix(std::string_view text, RankProfile* profile);  // matrix

}  // namespace collective_ops
