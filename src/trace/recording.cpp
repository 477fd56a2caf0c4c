#include "trace/recording.h"

#include <optional>
#include <utility>

namespace collective_ops {
namespace {

// All of this process. Its lock is taken before that of a recording.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<Recording>> recordings;
  std::optional<RecordingOptions> on;

  // Holding the lock. Those that are gone are forgotten.
  std::vector<std::shared_ptr<Recording>> alive() {
    std::vector<std::shared_ptr<Recording>> found;
    std::erase_if(recordings, [&](const std::weak_ptr<Recording>& weak) {
      auto recording = weak.lock();
      if (!recording) return true;
      found.push_back(std::move(recording));
      return false;
    });
    return found;
  }
};

Registry& registry() {
  static auto* const all = new Registry;  // never destroyed: ranks may leave while the process ends
  return *all;
}

}  // namespace

Result<std::shared_ptr<Recording>> Recording::create(RecorderIdentity identity) {
  std::shared_ptr<Recording> recording(new Recording(std::move(identity)));
  const std::lock_guard lock(registry().mutex);
  if (registry().on) {
    if (Status status = recording->start(*registry().on); !status.ok()) return status;
  }
  registry().recordings.push_back(recording);
  return recording;
}

Recording::Open Recording::open() const {
  const std::lock_guard lock(mutex_);
  return {recorder_, number_};
}

Status Recording::open_in(const std::filesystem::path& directory) {
  auto recorder = Recorder::open(directory, identity_);
  if (!recorder.ok()) return recorder.status();
  recorder_ = std::move(*recorder);
  ++number_;
  on_.store(true, std::memory_order_release);
  return {};
}

Status Recording::start_for_job(const std::filesystem::path& directory) {
  const std::lock_guard lock(mutex_);
  for_job_ = true;
  return recorder_ ? Status() : open_in(directory);
}

Status Recording::start(const RecordingOptions& options) {
  const std::lock_guard lock(mutex_);
  steps_.store(options.steps, std::memory_order_relaxed);
  return recorder_ ? Status() : open_in(options.directory);
}

void Recording::stop() {
  const std::lock_guard lock(mutex_);
  steps_.store(false, std::memory_order_relaxed);
  if (for_job_) return;
  on_.store(false, std::memory_order_release);
  recorder_.reset();  // its file is complete once the call that runs has ended
}

std::filesystem::path Recording::end() {
  const std::lock_guard lock(mutex_);
  const auto folder = recorder_ && for_job_ ? recorder_->path().parent_path() : std::filesystem::path();
  on_.store(false, std::memory_order_release);
  recorder_.reset();
  return folder;
}

Result<std::vector<std::filesystem::path>> record_calls(const RecordingOptions& options) {
  {
    const std::lock_guard lock(registry().mutex);
    registry().on = options;
    for (const auto& recording : registry().alive()) {
      if (Status status = recording->start(options); !status.ok()) {
        for (const auto& started : registry().alive()) started->stop();
        registry().on.reset();
        return status;
      }
    }
  }
  return recorded_files();
}

void stop_recording_calls() {
  const std::lock_guard lock(registry().mutex);
  registry().on.reset();
  for (const auto& recording : registry().alive()) recording->stop();
}

std::vector<RecorderIdentity> recordable() {
  std::vector<RecorderIdentity> all;
  const std::lock_guard lock(registry().mutex);
  for (const auto& recording : registry().alive()) all.push_back(recording->identity());
  return all;
}

std::vector<std::filesystem::path> recorded_files() {
  std::vector<std::filesystem::path> files;
  const std::lock_guard lock(registry().mutex);
  for (const auto& recording : registry().alive()) {
    if (const auto open = recording->open(); open.recorder) files.push_back(open.recorder->path());
  }
  return files;
}

}  // namespace collective_ops
