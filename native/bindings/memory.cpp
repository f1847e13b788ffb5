// Bindings of memory: separate arrays, arrays that share memory in turn, mapped files.
#include <cerrno>
#include <memory>
#include <system_error>

#include "bindings/common.h"

namespace sterna::border {

namespace {

// Arrays whose memory goes to a later one when their last view does.
struct Scratch {
    std::shared_ptr<SpareBuffers> spare = std::make_shared<SpareBuffers>();

    Out<uint8_t, 1> alloc(size_t nbytes) const { return lend_array<uint8_t, 1>(spare, {nbytes}); }
};

// handle: of an open file, as the system calls it. path: as the system has it, for errors.
nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>> map_file(system::File handle, size_t nbytes,
                                                            const nb::bytes& path) {
    const std::string name(path.c_str(), path.size());
    std::unique_ptr<MappedFile> file;
    try {
        file = std::make_unique<MappedFile>(handle, nbytes, name);
    } catch (const std::system_error& e) {
        errno = e.code().value();
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path.ptr());
        throw nb::python_error();
    }
    const uint8_t* data = file->data();
    nb::capsule owner(file.release(), [](void* p) noexcept { delete static_cast<MappedFile*>(p); });
    return {data, {nbytes}, owner};
}

}  // namespace

void raise_changed(const ChangedFile& e) {
    const nb::object path = nb::steal(PyUnicode_DecodeFSDefault(e.what()));
    const nb::object type = nb::module_::import_("sterna.errors").attr("ModelFormatError");
    const nb::object error =
        type("file"_a = path, "expected"_a = "the file that was mapped",
             "got"_a = "one truncated, changed or unreadable since",
             "remedy"_a = "load the model again, and without mmap where its file may change");
    PyErr_SetObject(type.ptr(), error.ptr());
}

void bind_memory(nb::module_& m) {
    nb::class_<Scratch>(m, "Scratch")
        .def(nb::init<>())
        .def("alloc", &Scratch::alloc, "nbytes"_a)
        .def("close", [](Scratch& s) { s.spare->close(); });
    m.def(
        "alloc", [](size_t nbytes) { return make_weight_array<uint8_t, 1>({nbytes}); }, "nbytes"_a);
    m.def("map_file", &map_file, "handle"_a, "nbytes"_a, "path"_a);
    m.def(
        "require_whole",
        [](nb::ndarray<nb::ro, nb::device::cpu> a) {
            if (const auto* file = MappedFile::of(a.data())) file->require_whole();
        },
        "a"_a);
}

}  // namespace sterna::border
