// A descriptor that stays with the process that made it.
#pragma once

#include "memory/descriptor.h"

namespace collective_ops {

// Closes itself, and its copy in every child of fork: a child must not keep a rank's name or connections
// alive after the rank has died, nor take what is sent to it. The child's descriptor keeps its number, as a
// socket that is connected to nothing, so that the child's copy of the owner closes no one else's.
class PrivateDescriptor {
 public:
  PrivateDescriptor() = default;
  explicit PrivateDescriptor(Descriptor fd);
  PrivateDescriptor(PrivateDescriptor&& other) noexcept = default;
  PrivateDescriptor& operator=(PrivateDescriptor&& other) noexcept;
  ~PrivateDescriptor() { reset(); }

  int get() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  void reset();

 private:
  Descriptor fd_;
};

}  // namespace collective_ops
