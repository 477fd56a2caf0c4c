#include "messages.h"

#include <limits>
#include <string>

#include <fmt/format.h>

namespace py = pybind11;

namespace collective_ops::python {
namespace {

int whole_number(py::handle value, const char* name) {
  const py::object number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  const long long found = number ? PyLong_AsLongLong(number.ptr()) : -1;
  if (PyErr_Occurred() != nullptr || found < std::numeric_limits<int>::min() ||
      found > std::numeric_limits<int>::max()) {
    PyErr_Clear();
    raise({ErrorCode::kInvalidArgument, fmt::format("{}={}: give a whole number below 2**31", name,
                                                    std::string(py::repr(value)).substr(0, 60))});
  }
  return static_cast<int>(found);
}

struct Batch {
  std::vector<Transfer> transfers;
  std::vector<Operands> operands;
};

Batch batch_of(const py::sequence& items, py::handle timeout) {
  Batch batch;
  const auto limit = milliseconds_from(timeout);
  for (const py::handle item : items) {
    const auto [sends, array, peer, tag] =
        py::cast<std::tuple<bool, py::object, py::object, py::object>>(item);
    Operands operands;
    const Operand& operand = sends ? operands.send.emplace(array, Access::kRead, "tensor")
                                   : operands.recv.emplace(array, Access::kWrite, "tensor");
    if (sends) operand.pack_if_needed();
    Transfer transfer;
    transfer.kind = sends ? Transfer::kSend : Transfer::kReceive;
    transfer.buffer = operand.pointer();
    transfer.count = operand.array().count;
    transfer.type = operand.array().type;
    if (sends || !peer.is_none()) transfer.peer = whole_number(peer, sends ? "dst" : "src");
    if (!sends && !peer.is_none() && transfer.peer == kAnySource) transfer.peer = -2;  // no rank either
    transfer.tag = whole_number(tag, "tag");
    transfer.timeout = limit;
    batch.transfers.push_back(transfer);
    batch.operands.push_back(std::move(operands));
  }
  return batch;
}

}  // namespace

py::list exchange_messages(Communicator& communicator, const py::sequence& items, py::handle timeout) {
  Batch batch = batch_of(items, timeout);
  std::vector<Received> received(batch.transfers.size());
  const Status status = [&] {
    const Wait released;
    return communicator.exchange(batch.transfers, received);
  }();
  check(status);
  py::list sources;
  for (size_t i = 0; i < received.size(); ++i) {
    if (batch.operands[i].recv) batch.operands[i].recv->unpack_if_needed();
    sources.append(batch.operands[i].recv ? py::object(py::int_(received[i].source)) : py::none());
  }
  return sources;
}

std::vector<MaybeWork> start_messages(Communicator& communicator, const py::sequence& items,
                                      py::handle timeout) {
  Batch batch = batch_of(items, timeout);
  std::vector<std::shared_ptr<Work>> started;
  {
    const Wait released;
    started = communicator.start(batch.transfers);
  }
  for (const auto& work : started) {
    if (!work->done()) continue;
    if (const Status status = work->wait(); status.code() == ErrorCode::kInvalidArgument) raise(status);
  }
  std::vector<MaybeWork> works;
  for (size_t i = 0; i < started.size(); ++i)
    works.push_back(std::make_shared<PendingWork>(std::move(started[i]), std::move(batch.operands[i])));
  return works;
}

}  // namespace collective_ops::python
