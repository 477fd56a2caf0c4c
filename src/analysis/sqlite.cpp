#include "analysis/sqlite.h"

#include <sqlite3.h>
#include <unistd.h>

#include <system_error>

#include <fmt/format.h>

namespace collective_ops {

void Rows::Closer::operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }

Rows::Rows(Database* database, std::string_view sql) : database_(database) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(database->handle_, sql.data(), static_cast<int>(sql.size()), &statement, nullptr) !=
      SQLITE_OK) {
    database->note_problem();
  }
  statement_.reset(statement);
}

bool Rows::next() {
  if (!statement_) return false;
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) database_->note_problem();
  return false;
}

std::string_view Rows::text(int column) const {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_.get(), column));
  if (text == nullptr) return {};
  return {text, static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column))};
}

double Rows::number(int column) const { return sqlite3_column_double(statement_.get(), column); }
int64_t Rows::integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }

Rows& Rows::bind(std::string_view text) {
  sqlite3_bind_text(statement_.get(), next_++, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
  return *this;
}

Rows& Rows::bind_bytes(std::string_view bytes) {
  sqlite3_bind_blob64(statement_.get(), next_++, bytes.data(), bytes.size(), SQLITE_TRANSIENT);
  return *this;
}

Rows& Rows::bind(double value) {
  sqlite3_bind_double(statement_.get(), next_++, value);
  return *this;
}

Rows& Rows::bind(int64_t value) {
  sqlite3_bind_int64(statement_.get(), next_++, value);
  return *this;
}

void Rows::run() {
  while (next()) {
  }
  if (statement_) sqlite3_reset(statement_.get());
  next_ = 1;
}

Result<std::unique_ptr<Database>> Database::open_input(const std::filesystem::path& path) {
  std::string uri = "file:";
  for (const unsigned char c : path.string()) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                       c == '/' || c == '.' || c == '_' || c == '-';
    uri += plain ? std::string(1, static_cast<char>(c)) : fmt::format("%{:02X}", c);
  }
  uri += "?immutable=1";
  std::unique_ptr<Database> database(new Database);
  const int code =
      sqlite3_open_v2(uri.c_str(), &database->handle_, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, nullptr);
  if (code == SQLITE_OK) return database;
  return Status(ErrorCode::kSystem,
                fmt::format("cannot read {}: {}", path.string(), sqlite3_errmsg(database->handle_)));
}

Result<std::unique_ptr<Database>> Database::create(const std::filesystem::path& path) {
  std::unique_ptr<Database> database(new Database);
  const int code =
      sqlite3_open_v2(path.c_str(), &database->handle_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  if (code != SQLITE_OK) {
    return Status(ErrorCode::kSystem,
                  fmt::format("cannot write {}: {}", path.string(), sqlite3_errmsg(database->handle_)));
  }
  // The file is moved to its place once it is whole: nothing needs to survive a crash before.
  database->run("PRAGMA journal_mode=OFF");
  database->run("PRAGMA synchronous=OFF");
  return database;
}

Status Database::write(const std::filesystem::path& path, const std::function<void(Database*)>& fill) {
  std::filesystem::path temporary = path;
  temporary += fmt::format(".{}.part", ::getpid());
  std::error_code error;
  std::string problem;
  {
    std::filesystem::remove(temporary, error);
    auto database = create(temporary);
    if (!database.ok()) return database.status();
    (*database)->run("BEGIN");
    fill(database->get());
    (*database)->run("COMMIT");
    problem = (*database)->problem();
  }
  if (problem.empty()) {
    std::filesystem::rename(temporary, path, error);
    if (error) problem = error.message();
  }
  if (problem.empty()) return {};
  std::filesystem::remove(temporary, error);
  return {ErrorCode::kSystem, fmt::format("cannot write {}: {}", path.string(), problem)};
}

Database::~Database() { sqlite3_close(handle_); }

void Database::note_problem() {
  if (problem_.empty()) problem_ = sqlite3_errmsg(handle_);
}

bool Database::has_table(std::string_view name) {
  Rows found = rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?");
  return found.statement_ && found.bind(name).next();
}

bool Database::has_column(std::string_view table, std::string_view column) {
  Rows found = rows("SELECT 1 FROM pragma_table_info(?) WHERE name = ?");
  return found.statement_ && found.bind(table).bind(column).next();
}

}  // namespace collective_ops
