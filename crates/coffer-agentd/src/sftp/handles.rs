//! Files and directories that the client has open.

use std::collections::HashMap;
use std::fs::File;
use std::io;

use super::directory::Directory;

pub(super) const MOST_HANDLES: usize = 512;

pub(super) enum Handle {
    File(File),
    Directory(Directory),
}

#[derive(Default)]
pub(super) struct Handles {
    open: HashMap<u32, Handle>,
    next: u32,
}

fn no_handle() -> io::Error {
    io::Error::from_raw_os_error(libc::EBADF)
}

fn number(name: &[u8]) -> io::Result<u32> {
    name.try_into().map(u32::from_be_bytes).map_err(|_| no_handle())
}

impl Handles {
    pub(super) fn add(&mut self, handle: Handle) -> io::Result<u32> {
        if self.open.len() >= MOST_HANDLES {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        while self.open.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let name = self.next;
        self.next = self.next.wrapping_add(1);
        self.open.insert(name, handle);
        Ok(name)
    }

    pub(super) fn remove(&mut self, name: &[u8]) -> io::Result<()> {
        self.open.remove(&number(name)?).map(drop).ok_or_else(no_handle)
    }

    pub(super) fn get(&self, name: &[u8]) -> io::Result<&Handle> {
        self.open.get(&number(name)?).ok_or_else(no_handle)
    }

    pub(super) fn file(&self, name: &[u8]) -> io::Result<&File> {
        match self.get(name)? {
            Handle::File(file) => Ok(file),
            Handle::Directory(_) => Err(no_handle()),
        }
    }

    pub(super) fn directory(&mut self, name: &[u8]) -> io::Result<&mut Directory> {
        match self.open.get_mut(&number(name)?) {
            Some(Handle::Directory(directory)) => Ok(directory),
            _ => Err(no_handle()),
        }
    }
}
