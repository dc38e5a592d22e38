#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| coffer_build::fuzz::dockerfile(data));
