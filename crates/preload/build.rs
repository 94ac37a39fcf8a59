//! Compiles the hooks that stable Rust cannot define: variadic functions.
//!
//! And binds what the library calls of itself to itself: where it is loaded by dlopen (`native`),
//! libc comes before it in the order in which names are looked up, and one hook that calls another
//! would get libc's function.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo::rerun-if-changed=src/variadic.c");
    cc::Build::new().file("src/variadic.c").flag("-fexceptions").flag("-Wall").compile("variadic");
}
