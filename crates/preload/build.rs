//! Compiles the hooks that stable Rust cannot define: variadic functions.

fn main() {
    println!("cargo::rerun-if-changed=src/variadic.c");
    cc::Build::new().file("src/variadic.c").flag("-fexceptions").flag("-Wall").compile("variadic");
    // Keep the C file's symbols, which nothing in Rust refers to.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-u,execl,-u,dprintf,-Bsymbolic-functions");
}
