//! Parses `multipart/form-data` in a streaming way.

use memchr::memmem;

/// All headers of one part.
const HEAD_LIMIT: usize = 16 << 10;

/// RFC 2046 allows 70.
const BOUNDARY_LIMIT: usize = 200;

/// What is wrong with a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// The part of a form that its `Content-Disposition` describes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PartHead {
    pub(super) name: Option<String>,
    /// As the client wrote it, directories included.
    pub(super) filename: Option<String>,
}

/// Receives the parts.
pub(super) trait Parts {
    type Error: From<Malformed>;

    fn begin(&mut self, head: PartHead) -> Result<(), Self::Error>;
    fn data(&mut self, data: &[u8]) -> Result<(), Self::Error>;
    fn end(&mut self) -> Result<(), Self::Error>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before the first delimiter.
    Preamble,
    /// Right after a delimiter.
    Delimiter,
    Head,
    Body,
    /// After the last delimiter; the rest is ignored.
    Epilogue,
}

/// A form being parsed.
#[derive(Debug)]
pub(super) struct Form {
    delimiter: Vec<u8>,
    buffer: Vec<u8>,
    place: Place,
}

impl Form {
    pub(super) fn new(boundary: &str) -> Self {
        Self {
            delimiter: format!("\r\n--{boundary}").into_bytes(),
            // Begin with a line break: the first delimiter, which starts the body, then looks like the
            // others.
            buffer: b"\r\n".to_vec(),
            place: Place::Preamble,
        }
    }

    /// Takes the next bytes of the body.
    pub(super) fn push<P: Parts>(&mut self, bytes: &[u8], parts: &mut P) -> Result<(), P::Error> {
        if self.place == Place::Epilogue {
            return Ok(());
        }
        self.buffer.extend_from_slice(bytes);
        let mut used = 0;
        loop {
            let rest = &self.buffer[used..];
            let (step, next) = match self.place {
                Place::Preamble => match memmem::find(rest, &self.delimiter) {
                    Some(at) => (at + self.delimiter.len(), Place::Delimiter),
                    None => {
                        used += rest.len().saturating_sub(self.delimiter.len() - 1);
                        break;
                    }
                },
                Place::Delimiter => match after_delimiter(rest)? {
                    Some(found) => found,
                    None => break,
                },
                Place::Head => match head(rest)? {
                    Some((step, head)) => {
                        parts.begin(head)?;
                        (step, Place::Body)
                    }
                    None => break,
                },
                Place::Body => match memmem::find(rest, &self.delimiter) {
                    Some(at) => {
                        if at > 0 {
                            parts.data(&rest[..at])?;
                        }
                        parts.end()?;
                        (at + self.delimiter.len(), Place::Delimiter)
                    }
                    None => {
                        // The end may be the start of a delimiter.
                        let sure = rest.len().saturating_sub(self.delimiter.len() - 1);
                        if sure > 0 {
                            parts.data(&rest[..sure])?;
                        }
                        used += sure;
                        break;
                    }
                },
                Place::Epilogue => {
                    used = self.buffer.len();
                    break;
                }
            };
            used += step;
            self.place = next;
        }
        self.buffer.drain(..used);
        Ok(())
    }

    /// Ends the input.
    pub(super) fn finish(&self) -> Result<(), Malformed> {
        match self.place {
            Place::Epilogue => Ok(()),
            _ => Err(Malformed("the form ends before its last delimiter")),
        }
    }
}

/// `--` ends the form; otherwise the line ends, perhaps after blanks.
fn after_delimiter(rest: &[u8]) -> Result<Option<(usize, Place)>, Malformed> {
    if rest.starts_with(b"--") {
        return Ok(Some((2, Place::Epilogue)));
    }
    let blanks = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    match &rest[blanks..] {
        [b'\r', b'\n', ..] => Ok(Some((blanks + 2, Place::Head))),
        [] | [b'\r'] if blanks < HEAD_LIMIT => Ok(None),
        [b'-'] if blanks == 0 => Ok(None),
        _ => Err(Malformed("unexpected bytes follow a delimiter")),
    }
}

fn head(rest: &[u8]) -> Result<Option<(usize, PartHead)>, Malformed> {
    if rest.starts_with(b"\r\n") {
        return Ok(Some((2, PartHead::default())));
    }
    match memmem::find(rest, b"\r\n\r\n") {
        Some(at) if at <= HEAD_LIMIT => Ok(Some((at + 4, parse_head(&rest[..at])))),
        None if rest.len() <= HEAD_LIMIT => Ok(None),
        _ => Err(Malformed("the headers of a part are too large")),
    }
}

fn parse_head(head: &[u8]) -> PartHead {
    let text = String::from_utf8_lossy(head);
    for line in text.split("\r\n") {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        if name.trim().eq_ignore_ascii_case("content-disposition") {
            let parameters = parameters(value);
            let get = |wanted: &str| {
                parameters.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone())
            };
            return PartHead {
                name: get("name"),
                filename: get("filename*").and_then(|value| extended(&value)).or_else(|| get("filename")),
            };
        }
    }
    PartHead::default()
}

/// The boundary of a form, from its content type.
pub(super) fn boundary(content_type: &str) -> Option<String> {
    parameters(content_type)
        .into_iter()
        .find(|(name, _)| name == "boundary")
        .map(|(_, value)| value)
        .filter(|value| !value.is_empty() && value.len() <= BOUNDARY_LIMIT)
}

/// The parameters of a header: names in lower case, values without quotes.
fn parameters(value: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = value.split_once(';').map_or("", |(_, rest)| rest);
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_matches([' ', '\t', ';']).to_ascii_lowercase();
        let after = after.trim_start();
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => unquote(quoted),
            None => {
                let end = after.find(';').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        found.push((name, value));
        rest = next;
    }
    found
}

/// Up to the closing quote. A backslash escapes only quotes and backslashes, because some clients send
/// Windows paths unescaped.
fn unquote(quoted: &str) -> (String, &str) {
    let mut value = String::new();
    let mut characters = quoted.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => match characters.next_if(|(_, next)| matches!(next, '"' | '\\')) {
                Some((_, escaped)) => value.push(escaped),
                None => value.push('\\'),
            },
            other => value.push(other),
        }
    }
    (value, "")
}

/// `UTF-8''percent%20encoded`.
fn extended(value: &str) -> Option<String> {
    let (charset, rest) = value.split_once('\'')?;
    let (_language, encoded) = rest.split_once('\'')?;
    if !charset.eq_ignore_ascii_case("utf-8") {
        return None;
    }
    percent_encoding::percent_decode_str(encoded).decode_utf8().ok().map(|text| text.into_owned())
}

/// The parts of a form, each with its bytes and whether it ended.
#[cfg(any(test, fuzzing))]
#[derive(Debug, Default, PartialEq, Eq)]
struct Collected {
    parts: Vec<(PartHead, Vec<u8>, bool)>,
}

#[cfg(any(test, fuzzing))]
impl Parts for Collected {
    type Error = Malformed;

    fn begin(&mut self, head: PartHead) -> Result<(), Malformed> {
        assert!(self.parts.iter().all(|(_, _, ended)| *ended), "a part begins within another");
        self.parts.push((head, Vec::new(), false));
        Ok(())
    }

    fn data(&mut self, data: &[u8]) -> Result<(), Malformed> {
        let (_, bytes, ended) = self.parts.last_mut().expect("no bytes come before the first part");
        assert!(!*ended, "bytes come between two parts");
        bytes.extend_from_slice(data);
        Ok(())
    }

    fn end(&mut self) -> Result<(), Malformed> {
        let (_, _, ended) = self.parts.last_mut().expect("no end comes before the first part");
        assert!(!std::mem::replace(ended, true), "a part ends twice");
        Ok(())
    }
}

/// Fuzzing: a form parses the same whole and in pieces; its buffer and its output are bounded.
#[cfg(any(test, fuzzing))]
pub fn fuzz_multipart(data: &[u8]) {
    let Some((piece, rest)) = data.split_first() else { return };
    let line = memmem::find(rest, b"\n").unwrap_or(rest.len());
    let (content_type, body) = rest.split_at(line);
    let Some(boundary) = boundary(&String::from_utf8_lossy(content_type)) else { return };
    let body = body.strip_prefix(b"\n").unwrap_or(body);
    let read = |piece: usize| {
        let mut form = Form::new(&boundary);
        let mut collected = Collected::default();
        let mut outcome = Ok(());
        for bytes in body.chunks(piece) {
            outcome = form.push(bytes, &mut collected);
            if outcome.is_err() {
                break;
            }
            assert!(
                form.buffer.len() <= bytes.len() + HEAD_LIMIT + form.delimiter.len() + 4,
                "it holds too much"
            );
        }
        let outcome = outcome.and_then(|()| form.finish());
        (outcome, collected)
    };
    let (outcome, collected) = read(usize::from(*piece).max(1));
    let whole = read(usize::MAX);
    assert_eq!(outcome, whole.0, "pieces of {piece} read otherwise");
    if outcome.is_ok() {
        assert_eq!(collected, whole.1, "pieces of {piece} read otherwise");
        assert!(collected.parts.iter().all(|(_, _, ended)| *ended), "a whole form has an open part");
    }
    let out: usize = collected.parts.iter().map(|(_, bytes, _)| bytes.len()).sum();
    assert!(out <= body.len(), "more came out than went in");
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &[u8] = b"--xyz\r\n\
        Content-Disposition: form-data; name=\"file\"; filename=\"dir/a \\\"b\\\".txt\"\r\n\
        Content-Type: text/plain\r\n\r\n\
        one\r\n--xy not the end\r\n--xyz  \r\n\
        Content-Disposition: form-data; name=file; filename*=UTF-8''%C3%A9.txt\r\n\r\n\
        \r\n--xyz\r\n\r\nbare\r\n--xyz--\r\nepilogue";

    fn expected() -> Collected {
        let head = |name: Option<&str>, filename: Option<&str>| PartHead {
            name: name.map(Into::into),
            filename: filename.map(Into::into),
        };
        Collected {
            parts: vec![
                (head(Some("file"), Some("dir/a \"b\".txt")), b"one\r\n--xy not the end".to_vec(), true),
                (head(Some("file"), Some("é.txt")), vec![], true),
                (head(None, None), b"bare".to_vec(), true),
            ],
        }
    }

    #[test]
    fn a_form_comes_apart_the_same_in_pieces_of_any_size() {
        for size in 1..FORM.len() + 1 {
            let mut form = Form::new("xyz");
            let mut parts = Collected::default();
            for piece in FORM.chunks(size) {
                form.push(piece, &mut parts).unwrap();
            }
            assert_eq!(form.finish(), Ok(()), "{size}");
            assert_eq!(parts, expected(), "{size}");
        }
    }

    #[test]
    fn broken_forms_are_refused() {
        let push = |bytes: &[u8]| {
            let mut form = Form::new("xyz");
            form.push(bytes, &mut Collected::default())?;
            form.finish()
        };
        assert!(push(b"").is_err());
        assert!(push(b"--xyz\r\n\r\nnever ends").is_err());
        assert!(push(b"--xyzzy\r\n").is_err());
        assert!(push(&[b"--xyz\r\n".as_slice(), &vec![b'h'; 20 << 10]].concat()).is_err());
        assert_eq!(push(b"--xyz--"), Ok(()));
    }

    #[test]
    fn boundaries_may_be_quoted() {
        let of = |value| boundary(value);
        assert_eq!(of("multipart/form-data; boundary=abc"), Some("abc".into()));
        assert_eq!(of("multipart/form-data; charset=utf-8; Boundary=\"a b\""), Some("a b".into()));
        assert_eq!(of("multipart/form-data"), None);
        assert_eq!(of("multipart/form-data; boundary="), None);
    }
}
