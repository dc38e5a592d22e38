//! Numbers of messages, reasons and kinds of data (RFC 4250, section 4).

pub(crate) const DISCONNECT: u8 = 1;
pub(crate) const IGNORE: u8 = 2;
pub(crate) const UNIMPLEMENTED: u8 = 3;
pub(crate) const DEBUG: u8 = 4;
pub(crate) const SERVICE_REQUEST: u8 = 5;
pub(crate) const SERVICE_ACCEPT: u8 = 6;
pub(crate) const EXT_INFO: u8 = 7;
pub(crate) const KEXINIT: u8 = 20;
pub(crate) const NEWKEYS: u8 = 21;
pub(crate) const ECDH_INIT: u8 = 30;
pub(crate) const ECDH_REPLY: u8 = 31;
pub(crate) const USERAUTH_REQUEST: u8 = 50;
pub(crate) const USERAUTH_FAILURE: u8 = 51;
pub(crate) const USERAUTH_SUCCESS: u8 = 52;
pub(crate) const USERAUTH_PK_OK: u8 = 60;
pub(crate) const GLOBAL_REQUEST: u8 = 80;
pub(crate) const REQUEST_SUCCESS: u8 = 81;
pub(crate) const REQUEST_FAILURE: u8 = 82;
pub(crate) const CHANNEL_OPEN: u8 = 90;
pub(crate) const CHANNEL_OPEN_CONFIRMATION: u8 = 91;
pub(crate) const CHANNEL_OPEN_FAILURE: u8 = 92;
pub(crate) const CHANNEL_WINDOW_ADJUST: u8 = 93;
pub(crate) const CHANNEL_DATA: u8 = 94;
pub(crate) const CHANNEL_EXTENDED_DATA: u8 = 95;
pub(crate) const CHANNEL_EOF: u8 = 96;
pub(crate) const CHANNEL_CLOSE: u8 = 97;
pub(crate) const CHANNEL_REQUEST: u8 = 98;
pub(crate) const CHANNEL_SUCCESS: u8 = 99;
pub(crate) const CHANNEL_FAILURE: u8 = 100;

/// Reasons of [`CHANNEL_OPEN_FAILURE`].
pub(crate) const PROHIBITED: u32 = 1;
pub(crate) const CONNECT_FAILED: u32 = 2;
pub(crate) const UNKNOWN_TYPE: u32 = 3;
pub(crate) const NO_ROOM: u32 = 4;

/// Reasons of [`DISCONNECT`].
pub(crate) const BY_APPLICATION: u32 = 11;

/// The kind of [`CHANNEL_EXTENDED_DATA`] that is stderr.
pub(crate) const STDERR: u32 = 1;
