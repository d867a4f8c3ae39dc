// A device without hardware: its memory lies on the host, and the CPU computes every operation.
//
// It is as strict as CUDA: an operation on tensors of two devices is an error, unless it is a
// pointwise one and the other tensor is a 0-dim one on the CPU. It counts what makes the host wait
// for the device, and can be without float64, as MPS is.
#include <ATen/ATen.h>
#include <torch/library.h>
#include <torch/csrc/utils/pybind.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <c10/core/CPUAllocator.h>
#include <map>
#include <string>
#include <set>

namespace {
constexpr auto PU = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex DEVICES = 3;
thread_local c10::DeviceIndex current = 0;
thread_local int fallback_depth = 0;
std::map<std::string, int64_t> waits;
bool has_float64 = true;

void check_dtype(c10::ScalarType t) { TORCH_CHECK_TYPE(!(!has_float64 && (t == at::kDouble || t == at::kComplexDouble)), "Cannot convert a Tensor to float64 dtype as the device doesn't support float64"); }

void count_wait(const std::string& operation) {
  if (!fallback_depth) waits[operation] += 1;
}

struct HostAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = nullptr;
    if (bytes && posix_memalign(&memory, 64, bytes)) throw std::bad_alloc();
    return {memory, memory, &free, c10::Device(PU, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
HostAllocator alloc;
REGISTER_ALLOCATOR(PU, &alloc);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return PU; }
  c10::Device exchangeDevice(c10::Device d) const override { auto o = current; current = d.index(); return {PU, o}; }
  c10::Device getDevice() const override { return {PU, current}; }
  void setDevice(c10::Device d) const override { current = d.index(); }
  void uncheckedSetDevice(c10::Device d) const noexcept override { current = d.index(); }
  c10::Stream getStream(c10::Device d) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getNewStream(c10::Device d, int) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream exchangeStream(c10::Stream s) const noexcept override { return s; }
  c10::DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);
// Views of fake tensors on "cuda:1" ask for a guard, which a torch without CUDA does not have.
using FakeCuda = c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>;
C10_REGISTER_GUARD_IMPL(CUDA, FakeCuda);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return DEVICES; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex d) const override { current = d; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex d) const override { auto o = current; current = d; return o; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex d) const override { return exchangeDevice(d); }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& s, size_t n) const override {
    at::native::resize_bytes_cpu(s.unsafeGetStorageImpl(), n);
  }
};
Hooks hooks;

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> t, std::optional<c10::Layout>,
    std::optional<c10::Device> d, std::optional<bool>, std::optional<c10::MemoryFormat> f) {
  c10::OptionalDeviceGuard g; if (d && d->has_index()) g.reset_device(*d);
  check_dtype(c10::dtype_or_default(t));
  return at::detail::empty_generic(size, &alloc, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(t), f);
}
at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> t,
    std::optional<c10::Layout>, std::optional<c10::Device> d, std::optional<bool>) {
  c10::OptionalDeviceGuard g; if (d && d->has_index()) g.reset_device(*d);
  check_dtype(c10::dtype_or_default(t));
  return at::detail::empty_strided_generic(size, stride, &alloc, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(t));
}
at::Tensor as_strided(const at::Tensor& x, c10::SymIntArrayRef s, c10::SymIntArrayRef st, std::optional<c10::SymInt> o) {
  return at::cpu::as_strided_symint(x, s, st, o);
}
const at::Tensor& resize_(const at::Tensor& x, c10::SymIntArrayRef s, std::optional<at::MemoryFormat> f) {
  return at::native::resize_(x, C10_AS_INTARRAYREF_SLOW(s), f);
}
at::Tensor reshape_alias(const at::Tensor& x, c10::SymIntArrayRef s, c10::SymIntArrayRef st) {
  return at::native::_reshape_alias(x, C10_AS_INTARRAYREF_SLOW(s), C10_AS_INTARRAYREF_SLOW(st));
}
at::Tensor view(const at::Tensor& x, c10::SymIntArrayRef s) { return at::native::view(x, C10_AS_INTARRAYREF_SLOW(s)); }
at::Tensor host(const at::Tensor& x) {
  if (x.is_cpu()) return x;
  return at::from_blob(x.data_ptr(), x.sizes(), x.strides(), at::TensorOptions().dtype(x.dtype()).device(at::kCPU));
}
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  if (self.is_cpu() != dst.is_cpu() && !non_blocking)
    count_wait(self.is_cpu() ? "copy to the device" : "copy to the host");
  if (dst.numel()) host(dst).copy_(host(self));
  return dst;
}
at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  c10::OptionalDeviceGuard g; if (dst.is_privateuseone()) g.reset_device(dst.device());
  at::native::resize_(dst, self.sizes(), std::nullopt);
  // The fallback brings its results back by this; it is no transfer of a real device.
  if (dst.numel()) host(dst).copy_(host(self));
  return dst;
}
at::Scalar scalar(const at::Tensor& x) { count_wait("_local_scalar_dense"); return at::native::_local_scalar_dense_cpu(host(x)); }
at::Tensor& set_storage(at::Tensor& r, at::Storage s, c10::SymInt o, c10::SymIntArrayRef size, c10::SymIntArrayRef st) {
  return at::cpu::set__symint(r, s, o, size, st);
}
at::Tensor& set_only(at::Tensor& r, at::Storage s) { return at::native::set_(r, s); }
at::Tensor& set_tensor(at::Tensor& r, const at::Tensor& s) { return at::native::set_tensor_(r, s); }

const std::set<std::string> WAITING = {"aten::nonzero", "aten::masked_select", "aten::unique_dim", "aten::_unique2",
  "aten::equal", "aten::is_nonzero", "aten::_linalg_check_errors", "aten::item", "aten::_assert_async.not"};
const std::set<std::string> INDEXING = {"aten::index", "aten::index_put_", "aten::_index_put_impl_"};

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  auto name = schema.name();
  std::optional<c10::Device> first;
  bool pointwise = op.hasTag(at::Tag::pointwise);
  auto n = schema.arguments().size();
  auto look = [&](const at::Tensor& x) {
    if (!x.defined()) return;
    if (x.is_privateuseone()) {
      if (!first) first = x.device();
      else TORCH_CHECK(*first == x.device(), "Expected all tensors to be on the same device, but found at least two devices, ", *first, " and ", x.device(), "! (", name, ")");
    }
  };
  for (const auto& a : torch::jit::last(*stack, n)) {
    if (a.isTensor()) look(a.toTensor());
    else if (a.isTensorList()) for (const auto& x : a.toTensorVector()) look(x);
    else if (a.isOptionalTensorList()) for (const std::optional<at::Tensor>& x : a.toOptionalTensorVector()) if (x) look(*x);
  }
  if (first) for (const auto& a : torch::jit::last(*stack, n)) if (a.isTensor() && a.toTensor().defined() && a.toTensor().is_cpu()) {
    bool fine = (a.toTensor().dim() == 0 && pointwise) || INDEXING.count(name);
    TORCH_CHECK(fine, "Expected all tensors to be on the same device, but found at least two devices, ", *first, " and cpu! (", name, ")");
  }
  if (WAITING.count(name)) count_wait(name.substr(6));
  struct Depth { Depth() { ++fallback_depth; } ~Depth() { --fallback_depth; } } depth;
  at::native::cpu_fallback(op, stack);
}
// As CUDA's, it takes a condition that is a 0-dim tensor on the CPU; the fallback would return the
// result on the condition's device.
at::Tensor where(const at::Tensor& condition, const at::Tensor& x, const at::Tensor& y) {
  c10::Device device = x.is_privateuseone() ? x.device() : y.is_privateuseone() ? y.device() : condition.device();
  for (const auto* tensor : {&condition, &x, &y})
    TORCH_CHECK(tensor->device() == device || (tensor->is_cpu() && tensor->dim() == 0),
      "Expected all tensors to be on the same device, but found at least two devices, ", device, " and ", tensor->device(), "! (aten::where)");
  ++fallback_depth;
  auto result = at::where(host(condition), host(x), host(y)).to(device);
  --fallback_depth;
  return result;
}
}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("resize_", resize_);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("view", view);
  m.impl("where.self", where);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", scalar);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_.source_Storage", set_only);
  m.impl("set_.source_Storage_storage_offset", set_storage);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  at::RegisterPrivateUse1HooksInterface(&hooks);
  m.def("reset_waits", [] { waits.clear(); });
  m.def("waits", [] { return waits; });
  m.def("set_float64", [](bool supported) { has_float64 = supported; });
  m.def("current", [] { return int(current); });
  m.def("set_current", [](int index) { current = index; });
}
