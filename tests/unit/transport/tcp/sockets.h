// Connected TCP sockets of this machine.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "memory/private_descriptor.h"
#include "transport/tcp/link.h"

namespace collective_ops::tcp {

inline std::pair<PrivateDescriptor, PrivateDescriptor> socket_pair() {
  Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(listener.get(), plain, length), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), plain, &length), 0);
  Descriptor there(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(there.get(), plain, length), 0);
  Descriptor here(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_TRUE(here.valid());
  EXPECT_TRUE(prepare_socket(here.get()).ok());
  EXPECT_TRUE(prepare_socket(there.get()).ok());
  return {PrivateDescriptor(std::move(here)), PrivateDescriptor(std::move(there))};
}

inline std::pair<Link, Link> link_pair(int connections) {
  auto [left, right] = socket_pair();
  std::vector<PrivateDescriptor> lefts, rights;
  for (int i = 0; i < connections; ++i) {
    auto [a, b] = socket_pair();
    lefts.push_back(std::move(a));
    rights.push_back(std::move(b));
  }
  return {Link(std::move(left), std::move(lefts)), Link(std::move(right), std::move(rights))};
}

}  // namespace collective_ops::tcp
