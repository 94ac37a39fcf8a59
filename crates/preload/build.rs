//! Compiles the hooks that stable Rust cannot define, variadic functions, and what stands in the
//! unwinder's place until it is needed.
//!
//! And binds what the library calls of itself to itself: where it is loaded by dlopen (`native`),
//! libc comes before it in the order in which names are looked up, and one hook that calls another
//! would get libc's function.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    let files = ["src/variadic.c", "src/unwinding.c"];
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    cc::Build::new().files(files).flag("-fexceptions").flag("-Wall").compile("hooks");
}
