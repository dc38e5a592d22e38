#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| coffer_core::fuzz::pkt_line(data));
