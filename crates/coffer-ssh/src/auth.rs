//! Who the client is (RFC 4252): the holder of one key.

use bytes::Bytes;

use crate::error::Error;
use crate::keys::{KIND, PublicKey};
use crate::message::{
    SERVICE_ACCEPT, SERVICE_REQUEST, USERAUTH_FAILURE, USERAUTH_PK_OK, USERAUTH_REQUEST, USERAUTH_SUCCESS,
};
use crate::text::{Append as _, Fields};

/// Agents offer all their keys, one after the other.
const MOST_TRIES: usize = 64;
const LONGEST_USER: usize = 255;

/// Answers the messages before a connection.
pub(crate) struct Door {
    session: [u8; 32],
    known: PublicKey,
    tries: usize,
}

/// The answer to a message.
pub(crate) enum Answer {
    Say(Vec<u8>),
    /// It is let in, as this user.
    Welcome(Vec<u8>, String),
}

impl Door {
    pub(crate) fn new(session: [u8; 32], known: PublicKey) -> Self {
        Self { session, known, tries: 0 }
    }

    pub(crate) fn answer(&mut self, message: &Bytes) -> Result<Answer, Error> {
        let mut fields = Fields::of(message);
        match fields.byte()? {
            SERVICE_REQUEST if fields.text()? == "ssh-userauth" => {
                let mut accept = vec![SERVICE_ACCEPT];
                accept.string(b"ssh-userauth");
                Ok(Answer::Say(accept))
            }
            USERAUTH_REQUEST => self.try_in(fields),
            _ => Err(Error::Protocol("a message before authentication")),
        }
    }

    fn try_in(&mut self, mut fields: Fields<'_>) -> Result<Answer, Error> {
        let (user, service, method) = (fields.text()?, fields.text()?, fields.text()?);
        if service != "ssh-connection" || user.len() > LONGEST_USER {
            return Err(Error::Protocol("a request for another service"));
        }
        self.tries += 1;
        if self.tries > MOST_TRIES {
            return Err(Error::NotAllowed);
        }
        if method != "publickey" {
            return Ok(refused());
        }
        let has_signature = fields.flag()?;
        let (kind, blob) = (fields.text()?, fields.string()?);
        if kind != KIND || blob != self.known.blob() {
            return Ok(refused());
        }
        if !has_signature {
            let mut usable = vec![USERAUTH_PK_OK];
            usable.string(kind.as_bytes());
            usable.string(blob);
            return Ok(Answer::Say(usable));
        }
        let mut signed = Vec::new();
        signed.string(&self.session);
        signed.push(USERAUTH_REQUEST);
        for part in [user, service, method] {
            signed.string(part.as_bytes());
        }
        signed.push(1);
        signed.string(kind.as_bytes());
        signed.string(blob);
        if self.known.verifies(&signed, fields.string()?) {
            return Ok(Answer::Welcome(vec![USERAUTH_SUCCESS], user.to_string()));
        }
        Ok(refused())
    }
}

fn refused() -> Answer {
    let mut message = vec![USERAUTH_FAILURE];
    message.string(b"publickey");
    message.push(0);
    Answer::Say(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeyPair;

    fn request(user: &str, key: &KeyPair, signed_for: Option<[u8; 32]>) -> Bytes {
        let mut message = vec![USERAUTH_REQUEST];
        for part in [user, "ssh-connection", "publickey"] {
            message.string(part.as_bytes());
        }
        message.push(u8::from(signed_for.is_some()));
        message.string(KIND.as_bytes());
        message.string(&key.public().blob());
        if let Some(session) = signed_for {
            let mut signed = Vec::new();
            signed.string(&session);
            signed.extend_from_slice(&message);
            message.string(&key.sign(&signed));
        }
        message.into()
    }

    #[test]
    fn only_the_known_key_with_a_signature_for_this_session_gets_in() {
        let (known, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let mut door = Door::new([1; 32], known.public());
        let mut try_with = |message: &Bytes| match door.answer(message).unwrap() {
            Answer::Say(said) => said[0],
            Answer::Welcome(said, user) => {
                assert_eq!(user, "root");
                said[0]
            }
        };
        assert_eq!(try_with(&request("root", &other, None)), USERAUTH_FAILURE);
        assert_eq!(try_with(&request("root", &other, Some([1; 32]))), USERAUTH_FAILURE);
        assert_eq!(try_with(&request("root", &known, None)), USERAUTH_PK_OK);
        assert_eq!(try_with(&request("root", &known, Some([2; 32]))), USERAUTH_FAILURE);
        assert_eq!(try_with(&request("root", &known, Some([1; 32]))), USERAUTH_SUCCESS);
    }

    #[test]
    fn nothing_else_is_answered_before() {
        let mut door = Door::new([1; 32], KeyPair::generate().unwrap().public());
        assert!(door.answer(&Bytes::from_static(&[90, 0, 0, 0, 0])).is_err());
        let other = KeyPair::generate().unwrap();
        for _ in 0..MOST_TRIES {
            assert!(door.answer(&request("u", &other, None)).is_ok());
        }
        assert!(matches!(door.answer(&request("u", &other, None)), Err(Error::NotAllowed)));
    }
}
