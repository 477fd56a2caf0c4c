// A thin layer over SQLite: databases of profiles are only read, and those of results written as a whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <collective_ops/status.h>

struct sqlite3;
struct sqlite3_stmt;

namespace collective_ops {

class Database;

// One prepared statement. Columns are read by their place; NULL reads as 0 or "".
class Rows {
 public:
  bool next();  // false at the end, and where the database is damaged
  std::string_view text(int column) const;
  double number(int column) const;
  int64_t integer(int column) const;

  Rows& bind(std::string_view text);  // parameters in their order
  Rows& bind_bytes(std::string_view bytes);
  Rows& bind(double value);
  Rows& bind(int64_t value);
  Rows& bind(int value) { return bind(int64_t{value}); }
  void run();  // a statement without rows; may be bound anew afterwards

 private:
  friend class Database;
  Rows(Database* database, std::string_view sql);
  struct Closer {
    void operator()(sqlite3_stmt* statement) const;
  };
  Database* database_;
  std::unique_ptr<sqlite3_stmt, Closer> statement_;
  int next_ = 1;
};

class Database {
 public:
  // Never makes a file beside it, which SQLite does for databases with a write-ahead log.
  static Result<std::unique_ptr<Database>> open_input(const std::filesystem::path& path);
  // Makes a database of what `fill` writes, in one transaction, and moves it to `path` once it is whole:
  // until then, and where it fails, what stood there stays. kSystem.
  static Status write(const std::filesystem::path& path, const std::function<void(Database*)>& fill);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  bool has_table(std::string_view name);
  bool has_column(std::string_view table, std::string_view column);
  Rows rows(std::string_view sql) { return {this, sql}; }
  void run(std::string_view sql) { rows(sql).run(); }
  const std::string& problem() const { return problem_; }  // of the first statement that failed; "" without

 private:
  friend class Rows;
  Database() = default;
  static Result<std::unique_ptr<Database>> create(const std::filesystem::path& path);
  void note_problem();
  sqlite3* handle_ = nullptr;
  std::string problem_;
};

}  // namespace collective_ops
