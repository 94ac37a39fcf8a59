//! Gives the variadic hooks of `variadic.c` their public names: a cdylib exports what Rust defines
//! only, so each name is a jump.

use core::arch::naked_asm;

macro_rules! jumps {
    ($($name:ident => $target:literal;)*) => {$(
        /// # Safety
        /// As for libc's function of this name.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(concat!("jmp ", $target));
            #[cfg(target_arch = "aarch64")]
            naked_asm!(concat!("b ", $target));
        }
    )*};
}

jumps! {
    execl => "shunt_execl";
    execlp => "shunt_execlp";
    execle => "shunt_execle";
    dprintf => "shunt_dprintf";
    vdprintf => "shunt_vdprintf";
    __dprintf_chk => "shunt_dprintf_chk";
    __vdprintf_chk => "shunt_vdprintf_chk";
}
