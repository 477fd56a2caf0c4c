// The part of DLPack's binary interface (version 1) that is used here: how libraries for arrays lend
// each other memory. Layouts and numbers are fixed by that interface.
#pragma once

#include <cstdint>

namespace collective_ops::dlpack {

enum DeviceType : int32_t {
  kCpu = 1,
  kCuda = 2,
  kCudaHost = 3,
  kVulkan = 7,
  kMetal = 8,
  kRocm = 10,
  kRocmHost = 11,
  kExtension = 12,  // Ascend NPUs among them
  kOneApi = 14,
};

enum TypeCode : uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8E4M3fn = 10,
  kFloat8E5M2 = 12,
};

struct Device {
  int32_t type;
  int32_t id;
};

struct ElementType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  ElementType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: contiguous
  uint64_t byte_offset;
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

// In a capsule named "dltensor".
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor* self);
};

inline constexpr uint64_t kReadOnly = 1;

// In a capsule named "dltensor_versioned".
struct VersionedTensor {
  Version version;
  void* context;
  void (*deleter)(VersionedTensor* self);
  uint64_t flags;
  Tensor tensor;
};

// In the capsule `type(array).__dlpack_c_exchange_api__`, named "dlpack_exchange_api": functions that
// save the Python call. PyTorch offers it from 2.10 on.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  void (*allocate)();  // this and the next two are not used here
  void (*export_managed)();
  void (*import_managed)();
  // Describes an array without a reference to it. 0, or -1 with a Python error set.
  int (*describe)(void* object, Tensor* out);
  void (*current_stream)();
};

}  // namespace collective_ops::dlpack
