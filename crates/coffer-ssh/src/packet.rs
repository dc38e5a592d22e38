//! Packets on the stream: plain until the first keys, then ChaCha20-Poly1305 in OpenSSH's form.

use bytes::{Bytes, BytesMut};
use ring::aead::chacha20_poly1305_openssh::{KEY_LEN, OpeningKey, SealingKey, TAG_LEN};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::error::Error;

/// OpenSSH's own limit.
const LARGEST: usize = 256 << 10;
const LENGTH: usize = 4;
/// Of what is encrypted, without the length.
const BLOCK: usize = 8;
const LEAST_PADDING: usize = 4;

pub(crate) type Secret = [u8; KEY_LEN];
pub(crate) type Input = Box<dyn AsyncRead + Send + Unpin>;
pub(crate) type Output = Box<dyn AsyncWrite + Send + Unpin>;

/// Reads packets.
pub(crate) struct Reader {
    stream: Input,
    key: Option<OpeningKey>,
    sequence: u32,
}

impl Reader {
    pub(crate) fn new(stream: Input) -> Self {
        Self { stream, key: None, sequence: 0 }
    }

    /// The line before the first packet, without its end.
    pub(crate) async fn greeting(&mut self) -> Result<String, Error> {
        const LONGEST: usize = 255;
        let mut line = Vec::new();
        loop {
            match self.stream.read_u8().await? {
                b'\n' => break,
                byte => line.push(byte),
            }
            if line.len() > LONGEST {
                return Err(Error::Protocol("no SSH greeting"));
            }
        }
        let line = String::from_utf8(line).map_err(|_| Error::Protocol("no SSH greeting"))?;
        Ok(line.trim_end_matches('\r').to_string())
    }

    /// The number of the packet that was read last.
    pub(crate) fn last(&self) -> u32 {
        self.sequence.wrapping_sub(1)
    }

    /// From the next packet on.
    pub(crate) fn rekey(&mut self, secret: &Secret, restart: bool) {
        self.key = Some(OpeningKey::new(secret));
        if restart {
            self.sequence = 0;
        }
    }

    /// The payload of the next packet; never empty.
    pub(crate) async fn next(&mut self) -> Result<Bytes, Error> {
        let mut head = [0; LENGTH];
        self.stream.read_exact(&mut head).await?;
        let length = match &self.key {
            Some(key) => key.decrypt_packet_length(self.sequence, head),
            None => head,
        };
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if !(LEAST_PADDING + 2..=LARGEST).contains(&length) {
            return Err(Error::Protocol("a packet of a wrong length"));
        }
        let tag_length = if self.key.is_some() { TAG_LEN } else { 0 };
        let mut packet = BytesMut::zeroed(LENGTH + length + tag_length);
        packet[..LENGTH].copy_from_slice(&head);
        self.stream.read_exact(&mut packet[LENGTH..]).await?;
        if let Some(key) = &self.key {
            let tag = packet.split_off(LENGTH + length);
            let tag = tag.first_chunk().ok_or(Error::Protocol("a packet without a tag"))?;
            let opened = key.open_in_place(self.sequence, &mut packet, tag);
            opened.map_err(|_| Error::Protocol("a packet that was changed on its way"))?;
        }
        self.sequence = self.sequence.wrapping_add(1);
        let padding = usize::from(packet[LENGTH]);
        let payload = (length - 1).checked_sub(padding).filter(|length| *length > 0);
        let payload = payload.ok_or(Error::Protocol("a packet without a payload"))?;
        Ok(packet.freeze().slice(LENGTH + 1..LENGTH + 1 + payload))
    }
}

/// Writes packets. A caller that is cancelled leaves no half of one behind: the next call writes the rest first.
pub(crate) struct Writer {
    stream: Output,
    /// Sealed and not yet written.
    rest: BytesMut,
    key: Option<SealingKey>,
    sequence: u32,
}

impl Writer {
    pub(crate) fn new(stream: Output) -> Self {
        Self { stream, rest: BytesMut::new(), key: None, sequence: 0 }
    }

    pub(crate) async fn greet(&mut self, line: &str) -> Result<(), Error> {
        self.stream.write_all(format!("{line}\r\n").as_bytes()).await?;
        Ok(self.stream.flush().await?)
    }

    pub(crate) fn rekey(&mut self, secret: &Secret, restart: bool) {
        self.key = Some(SealingKey::new(secret));
        if restart {
            self.sequence = 0;
        }
    }

    pub(crate) async fn send(&mut self, payload: &[u8]) -> Result<(), Error> {
        self.send_parts(payload, &[]).await
    }

    /// One packet; its payload is the two, one after the other.
    pub(crate) async fn send_parts(&mut self, head: &[u8], data: &[u8]) -> Result<(), Error> {
        let packet = self.packet(head, data);
        self.rest.extend_from_slice(&packet);
        while !self.rest.is_empty() {
            // Takes from `rest` exactly what was written.
            if self.stream.write_buf(&mut self.rest).await? == 0 {
                return Err(Error::Io(std::io::ErrorKind::WriteZero.into()));
            }
        }
        Ok(self.stream.flush().await?)
    }

    fn packet(&mut self, head: &[u8], data: &[u8]) -> Vec<u8> {
        let payload = head.len() + data.len();
        // The length counts only before there are keys.
        let counted = 1 + payload + if self.key.is_some() { 0 } else { LENGTH };
        let padding = LEAST_PADDING + (BLOCK - (counted + LEAST_PADDING) % BLOCK) % BLOCK;
        let length = 1 + payload + padding;
        let mut packet = Vec::with_capacity(LENGTH + length + TAG_LEN);
        packet.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        packet.push(u8::try_from(padding).unwrap_or(u8::MAX));
        packet.extend_from_slice(head);
        packet.extend_from_slice(data);
        packet.resize(LENGTH + length, 0);
        if let Some(key) = &self.key {
            let mut tag = [0; TAG_LEN];
            key.seal_in_place(self.sequence, &mut packet, &mut tag);
            packet.extend_from_slice(&tag);
        }
        self.sequence = self.sequence.wrapping_add(1);
        packet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn packets_come_back_plain_and_sealed_and_changed_ones_do_not() {
        let secret = [7; KEY_LEN];
        for (sealed, size) in [(false, 1), (false, 100), (true, 1), (true, 11), (true, 40_000)] {
            let (near, far) = tokio::io::duplex(1 << 20);
            let (mut writer, mut reader) = (Writer::new(Box::new(near)), Reader::new(Box::new(far)));
            if sealed {
                writer.rekey(&secret, true);
                reader.rekey(&secret, true);
            }
            let sent = vec![9; size];
            for _ in 0..3 {
                writer.send(&sent).await.unwrap();
                assert_eq!(reader.next().await.unwrap(), sent);
            }
            assert_eq!(reader.last(), 2);
            if sealed {
                let mut packet = writer.packet(&sent, &[]);
                packet[6] ^= 1;
                writer.stream.write_all(&packet).await.unwrap();
                assert!(matches!(reader.next().await, Err(Error::Protocol(_))));
            }
        }
    }

    #[tokio::test]
    async fn a_cancelled_write_leaves_no_half_packet() {
        let (near, far) = tokio::io::duplex(100);
        let (mut writer, mut reader) = (Writer::new(Box::new(near)), Reader::new(Box::new(far)));
        let long = vec![1; 5000];
        let cut = tokio::time::timeout(std::time::Duration::from_millis(20), writer.send(&long)).await;
        assert!(cut.is_err(), "nobody reads yet");
        let sent = tokio::spawn(async move { writer.send(&[2]).await });
        assert_eq!(reader.next().await.unwrap(), long);
        assert_eq!(reader.next().await.unwrap(), [2_u8][..]);
        sent.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn lengths_are_bounded() {
        for length in [0_u32, 5, u32::MAX, 257 << 10] {
            let (mut near, far) = tokio::io::duplex(1 << 20);
            near.write_all(&length.to_be_bytes()).await.unwrap();
            near.write_all(&[0; 64]).await.unwrap();
            assert!(matches!(Reader::new(Box::new(far)).next().await, Err(Error::Protocol(_))), "{length}");
        }
    }
}
