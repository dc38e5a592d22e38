#![forbid(unsafe_code)]
pub mod sniff;
