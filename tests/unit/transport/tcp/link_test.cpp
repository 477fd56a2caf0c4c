#include "transport/tcp/link.h"

#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "sockets.h"

namespace collective_ops::tcp {
namespace {

std::vector<std::byte> pattern(size_t bytes, uint8_t seed = 0) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>((i * 31 + i / 251 + seed) & 0xff);
  return data;
}

Header header_of(size_t bytes, uint32_t call = 1) {
  return {.call = call, .head = 7, .shape = 9, .bytes = bytes};
}

// Moves both ways until `to` has its message, or `turns` have brought nothing.
Link::Pulled transfer(Link& from, Link& to, int turns = 1 << 20) {
  for (int i = 0; i < turns; ++i) {
    (void)from.push();
    const Link::Pulled pulled = to.pull();
    if (pulled == Link::Pulled::kDone || pulled == Link::Pulled::kFailed) return pulled;
  }
  return Link::Pulled::kNothing;
}

TEST(Parts, CoverEveryMessageOnceInOrder) {
  for (size_t connections : {1, 2, 3, 4, 7}) {
    for (size_t bytes : {size_t{0}, size_t{1}, kSmallestPart - 1, kSmallestPart, 2 * kSmallestPart - 1,
                         2 * kSmallestPart, 3 * kSmallestPart + 5, 40 * kSmallestPart + 1}) {
      size_t at = 0;
      for (size_t i = 0; i < connections; ++i) {
        const Part part = part_of(bytes, connections, i);
        ASSERT_LE(part.begin, part.end);
        if (part.begin == part.end) continue;
        ASSERT_EQ(part.begin, at) << bytes << " bytes, connection " << i << " of " << connections;
        at = part.end;
      }
      ASSERT_EQ(at, bytes) << bytes << " bytes over " << connections;
    }
  }
}

TEST(Link, MovesMessagesOfAllSizesOverAnyNumberOfConnections) {
  for (int connections : {1, 2, 4}) {
    auto [left, right] = link_pair(connections);
    for (size_t bytes : {size_t{0}, size_t{1}, size_t{40}, size_t{4097}, 2 * kSmallestPart - 1,
                         2 * kSmallestPart, (size_t{9} << 20) + 3}) {
      const auto sent = pattern(bytes);
      std::vector<std::byte> got(bytes);
      left.send(header_of(bytes), sent.data());
      right.expect(header_of(bytes), got.data());
      ASSERT_EQ(transfer(left, right), Link::Pulled::kDone) << bytes << " over " << connections;
      ASSERT_EQ(got, sent);
      ASSERT_FALSE(left.sending());
    }
  }
}

TEST(Link, KeepsTheOrderOfMessagesThatWait) {
  auto [left, right] = link_pair(3);
  const size_t sizes[] = {3 * kSmallestPart, 5, 2 * kSmallestPart + 64, 0, 100};
  std::vector<std::vector<std::byte>> sent;
  for (size_t i = 0; i < std::size(sizes); ++i) sent.push_back(pattern(sizes[i], static_cast<uint8_t>(i)));
  for (const auto& one : sent) left.send(header_of(one.size()), one.data());
  for (const auto& one : sent) {
    std::vector<std::byte> got(one.size());
    right.expect(header_of(one.size()), got.data());
    ASSERT_EQ(transfer(left, right), Link::Pulled::kDone);
    ASSERT_EQ(got, one);
  }
}

TEST(Link, CopiesWhatIsAboutToChange) {
  auto [left, right] = link_pair(2);
  const size_t bytes = 16 << 20;  // more than the sockets take
  auto data = pattern(bytes);
  const auto before = data;
  left.send(header_of(bytes), data.data());
  (void)left.push();
  ASSERT_TRUE(left.sending());
  left.keep(data.data() + bytes - 1, 1);
  std::fill(data.begin(), data.end(), std::byte{0});
  std::vector<std::byte> got(bytes);
  right.expect(header_of(bytes), got.data());
  ASSERT_EQ(transfer(left, right), Link::Pulled::kDone);
  EXPECT_EQ(got, before);
}

TEST(Link, TellsAnotherCallByItsHeader) {
  auto [left, right] = link_pair(2);
  const auto sent = pattern(100);
  std::vector<std::byte> got(200);
  left.send(header_of(100, 5), sent.data());
  right.expect(header_of(200, 5), got.data());
  ASSERT_EQ(transfer(left, right), Link::Pulled::kFailed);
  EXPECT_TRUE(right.differs());
  EXPECT_EQ(right.received().bytes, 100u);
  EXPECT_EQ(right.expected().bytes, 200u);
}

TEST(Link, ReportsAConnectionThatHasEnded) {
  auto [left, right] = link_pair(1);
  std::vector<std::byte> got(8);
  right.expect(header_of(8), got.data());
  { const Link gone = std::move(left); }
  ASSERT_EQ(transfer(right, right), Link::Pulled::kFailed);
  EXPECT_FALSE(right.differs());
  EXPECT_EQ(right.status().code(), ErrorCode::kPeerLost);
}

TEST(Link, NoticesComeBesideAMessageThatIsStuck) {
  auto [left, right] = link_pair(1);
  const auto data = pattern(16 << 20);
  left.send(header_of(data.size()), data.data());
  (void)left.push();
  ASSERT_TRUE(left.sending());
  left.write_notice({NoticeKind::kFailed, ErrorCode::kTimeout, 3, "too late"});
  left.write_notice({NoticeKind::kLeft, ErrorCode::kOk, 4, ""});
  std::vector<Notice> notices;
  while (notices.size() < 2 && !right.ended()) {
    for (Notice& notice : right.read_notices()) notices.push_back(std::move(notice));
  }
  ASSERT_EQ(notices.size(), 2u);
  EXPECT_EQ(notices[0].kind, NoticeKind::kFailed);
  EXPECT_EQ(notices[0].code, ErrorCode::kTimeout);
  EXPECT_EQ(notices[0].call, 3u);
  EXPECT_EQ(notices[0].text, "too late");
  EXPECT_EQ(notices[1].kind, NoticeKind::kLeft);
}

TEST(Link, RefusesNoticesThatAreNone) {
  auto [a, b] = socket_pair();
  auto [c, d] = socket_pair();
  std::vector<PrivateDescriptor> data;
  data.push_back(std::move(d));
  Link link(std::move(b), std::move(data));
  const char junk[64] = "GET / HTTP/1.1";
  ASSERT_EQ(::send(a.get(), junk, sizeof(junk), 0), static_cast<ssize_t>(sizeof(junk)));
  while (!link.ended()) ASSERT_TRUE(link.read_notices().empty());
  EXPECT_EQ(link.status().code(), ErrorCode::kPeerLost);
}

}  // namespace
}  // namespace collective_ops::tcp
