//! Compiles the hooks that stable Rust cannot define: variadic functions.

fn main() {
    println!("cargo::rerun-if-changed=src/variadic.c");
    cc::Build::new().file("src/variadic.c").flag("-fexceptions").flag("-Wall").compile("variadic");
}
