// XLA's C interface for custom calls, as far as it is used here: what its header xla/ffi/api/c_api.h declares, version 0.1.
//
// Declared by ourselves, so that no jaxlib is needed to build; a test compares it with the header that jaxlib ships. Every
// struct begins with its size, by which its reader sees what the writer knows of; later versions only append.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace regard::xla {

constexpr int major_version = 0, minor_version = 1;  // the oldest that has all this

struct Error;

enum DataType : int {
  PRED = 1, S8 = 2, S16 = 3, S32 = 4, S64 = 5, U8 = 6, U16 = 7, U32 = 8, U64 = 9, F16 = 10, F32 = 11, F64 = 12, BF16 = 16
};
enum AttributeType : int { scalar = 3 };
enum Stage : int { execute = 3 };
enum Code : int { invalid_argument = 3, resource_exhausted = 8, internal = 13 };

enum ExtensionType : int { metadata = 1 };
struct Extension {
  size_t size;
  ExtensionType type;
  Extension* next;
};

struct Version {
  size_t size;
  Extension* extensions;
  int major, minor;
};

// Asked for once, when a handler is registered.
struct Metadata {
  size_t size;
  Version version;
  uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct ErrorArguments {
  size_t size;
  Extension* extensions;
  const char* message;
  Code code;
};
struct Api {
  size_t size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorArguments*);
};

// Dense and in row-major order.
struct Buffer {
  size_t size;
  Extension* extensions;
  DataType type;
  void* data;
  int64_t rank;
  int64_t* sizes;
};
struct Scalar {
  DataType type;
  void* value;
};
struct Bytes {
  const char* begin;
  size_t length;
};

// Arguments or results; all are buffers.
struct Buffers {
  size_t size;
  Extension* extensions;
  int64_t count;
  int* types;
  Buffer** buffers;
};
struct Attributes {
  size_t size;
  Extension* extensions;
  int64_t count;
  AttributeType* types;
  Bytes** names;
  void** values;
};

struct Frame {
  size_t size;
  Extension* extensions;
  const Api* api;
  void* context;
  Stage stage;
  Buffers arguments, results;
  Attributes attributes;
};

// The custom calls, in ffi.cpp.
Error* forward(Frame*);
Error* backward(Frame*);

}  // namespace regard::xla
