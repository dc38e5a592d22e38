//! Finds the commands in a shell line.
//!
//! Not a shell: it knows quotes, separators, substitutions, here-documents and keywords. In doubt it takes
//! text for a command rather than for data, or reports the line as unclear; it does not know values that
//! exist only at run time, such as those of variables.

use std::fmt;

/// Longer lines are not parsed.
pub(super) const LONGEST: usize = 256 * 1024;
pub(super) const MOST_WORDS: usize = 10_000;
/// Most nested substitutions.
const DEEPEST: usize = 24;

/// Why a line is unclear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unclear {
    TooLong,
    TooDeep,
    /// A quote, a parenthesis or a document is not closed.
    Unfinished,
    /// A command name that is known only at run time.
    Name(String),
    /// A form that shells parse differently, or that is not supported here.
    Form(&'static str),
}

impl fmt::Display for Unclear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => f.write_str("the command is too long"),
            Self::TooDeep => f.write_str("the command is nested too deeply"),
            Self::Unfinished => f.write_str("a quote or a parenthesis is not closed"),
            Self::Name(name) => {
                let shown: String = name.chars().take(64).collect();
                write!(f, "the command that `{shown}` runs is known only at run time")
            }
            Self::Form(what) => write!(f, "{what} cannot be checked"),
        }
    }
}

/// Every command in `line`, including those in substitutions, each as its words.
pub(super) fn commands(line: &str) -> Result<Vec<Vec<String>>, Unclear> {
    if line.len() > LONGEST {
        return Err(Unclear::TooLong);
    }
    if line.contains('\0') {
        return Err(Unclear::Form("a NUL"));
    }
    let mut found = Found::default();
    Reader { text: line, at: 0 }.list(Until::End, 0, &mut found)?;
    Ok(found.commands)
}

#[derive(Debug, Default)]
struct Found {
    commands: Vec<Vec<String>>,
    words: usize,
}

/// A word, without its quotes.
#[derive(Debug, Default)]
struct Word {
    text: String,
    /// Whether some of it is known only at run time.
    dynamic: bool,
    /// Whether any of it was quoted, so that it is not a keyword.
    quoted: bool,
}

impl Word {
    /// Whether a command begins after it, so that `case` is a keyword there.
    fn opens(&self) -> bool {
        let all = ["if", "then", "elif", "else", "while", "until", "do", "{", "!"];
        !self.quoted && all.contains(&self.text.as_str())
    }

    /// Whether it ends a compound command, so that `esac` may follow.
    fn closes(&self) -> bool {
        !self.quoted && ["fi", "done", "esac", "}"].contains(&self.text.as_str())
    }
}

/// A here-document that begins with the next line.
#[derive(Debug)]
struct Document {
    end: String,
    /// Whether substitutions in it are expanded.
    live: bool,
    /// Whether its lines may be indented with tabs.
    indented: bool,
}

/// An open construct in a list of commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Parenthesis,
    /// The commands of one branch of a `case`, up to `;;` or `esac`.
    Branch,
}

/// The end of a list of commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    End,
    Parenthesis,
}

#[derive(Debug)]
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn skip(&mut self, text: &str) -> bool {
        let there = self.rest().starts_with(text);
        if there {
            self.at += text.len();
        }
        there
    }

    /// Parses commands up to the end, or up to the closing parenthesis.
    fn list(&mut self, until: Until, depth: usize, found: &mut Found) -> Result<(), Unclear> {
        if depth > DEEPEST {
            return Err(Unclear::TooDeep);
        }
        let mut command: Vec<Word> = Vec::new();
        let mut documents: Vec<Document> = Vec::new();
        let mut open: Vec<Open> = Vec::new();
        // Whether a redirection came before the command's first word: `case` is not a keyword after one.
        let mut redirected = false;
        loop {
            let Some(letter) = self.peek() else {
                found.add(command)?;
                return if until == Until::End && open.is_empty() {
                    Ok(())
                } else {
                    Err(Unclear::Unfinished)
                };
            };
            if matches!(letter, '\n' | ';' | '&' | '|' | '(' | ')') {
                redirected = false;
            }
            match letter {
                ' ' | '\t' => self.at += 1,
                ';' if open.last() == Some(&Open::Branch)
                    && (self.rest().starts_with(";;") || self.rest().starts_with(";&")) =>
                {
                    // `;;`, `;&` or `;;&`.
                    self.at += 2;
                    self.skip("&");
                    found.add(std::mem::take(&mut command))?;
                    if !documents.is_empty() {
                        return Err(Unclear::Form("a document in a `case`"));
                    }
                    if !self.pattern(depth, found)? {
                        open.pop();
                        command.push(Word { text: "esac".into(), ..Word::default() });
                    }
                }
                '\n' => {
                    self.at += 1;
                    found.add(std::mem::take(&mut command))?;
                    for document in documents.drain(..) {
                        self.document(&document, until, depth, found)?;
                    }
                }
                '#' => self.at += self.rest().find('\n').unwrap_or(self.rest().len()),
                ';' | '&' | '|' => {
                    self.at += 1;
                    found.add(std::mem::take(&mut command))?;
                }
                '(' => {
                    found.add(std::mem::take(&mut command))?;
                    if self.skip("((") {
                        self.arithmetic(depth, found)?;
                    } else {
                        self.at += 1;
                        open.push(Open::Parenthesis);
                    }
                }
                ')' => {
                    self.at += 1;
                    found.add(std::mem::take(&mut command))?;
                    match (until, open.pop()) {
                        (Until::Parenthesis, None) if documents.is_empty() => return Ok(()),
                        (Until::Parenthesis, None) => {
                            return Err(Unclear::Form("a document that begins after its substitution"));
                        }
                        (_, Some(Open::Branch)) => return Err(Unclear::Form("`)` in a `case`")),
                        (_, Some(Open::Parenthesis) | None) => {}
                    }
                }
                '<' | '>' => {
                    redirected = true;
                    self.redirection(&mut command, &mut documents, depth, found)?;
                }
                _ if self.skip("\\\n") => {}
                _ => {
                    let word = self.word(depth, found)?;
                    let is_descriptor = !word.quoted
                        && matches!(self.peek(), Some('<' | '>'))
                        && word.text.bytes().all(|byte| byte.is_ascii_digit());
                    let keyword = if word.quoted { "" } else { word.text.as_str() };
                    if keyword == "case" {
                        // Its patterns end in parentheses that nothing opens, and not every shell knows that.
                        if until == Until::Parenthesis {
                            return Err(Unclear::Form("`case` within a substitution"));
                        }
                        if !redirected && command.iter().all(Word::opens) {
                            if !documents.is_empty() {
                                return Err(Unclear::Form("a document before a `case`"));
                            }
                            command.clear();
                            if self.case(depth, found)? {
                                open.push(Open::Branch);
                            } else {
                                command.push(Word { text: "esac".into(), ..Word::default() });
                            }
                            continue;
                        }
                    }
                    let closes = !redirected && command.iter().all(Word::closes);
                    if keyword == "esac" && closes && open.last() == Some(&Open::Branch) {
                        open.pop();
                    }
                    if !is_descriptor {
                        command.push(word);
                    }
                }
            }
        }
    }

    /// Parses what follows `case`, up to its first branch; false if it has none.
    fn case(&mut self, depth: usize, found: &mut Found) -> Result<bool, Unclear> {
        self.blanks();
        self.pattern_word(depth, found)?;
        self.empty_lines();
        let word = self.pattern_word(depth, found)?;
        if word.quoted || word.text != "in" {
            return Err(Unclear::Form("`case` without `in`"));
        }
        self.pattern(depth, found)
    }

    /// Parses the patterns of one branch, which are not commands, up to their `)`; false at the `esac` that
    /// ends the `case`.
    ///
    /// Accepts only words, with `|` between them. A line that a shell would take for commands at this place
    /// ends in a separator or has more words, and is refused.
    fn pattern(&mut self, depth: usize, found: &mut Found) -> Result<bool, Unclear> {
        self.empty_lines();
        let opened = self.skip("(");
        loop {
            self.blanks();
            let word = self.pattern_word(depth, found)?;
            if !word.quoted && word.text == "esac" {
                return if opened { Err(Unclear::Form("`esac` as a pattern")) } else { Ok(false) };
            }
            self.blanks();
            match self.next() {
                Some(')') => return Ok(true),
                Some('|') if self.peek() != Some('|') => {}
                _ => return Err(Unclear::Form("a pattern of `case`")),
            }
        }
    }

    fn pattern_word(&mut self, depth: usize, found: &mut Found) -> Result<Word, Unclear> {
        let from = self.at;
        if self.peek() == Some('#') {
            return Err(Unclear::Form("a comment in a `case`"));
        }
        let word = self.word(depth, found)?;
        if self.at == from { Err(Unclear::Form("a `case` without a word")) } else { Ok(word) }
    }

    fn blanks(&mut self) {
        while self.skip("\\\n") || self.skip(" ") || self.skip("\t") {}
    }

    /// Skips blanks, empty lines and comments.
    fn empty_lines(&mut self) {
        loop {
            self.blanks();
            if self.peek() == Some('#') {
                self.at += self.rest().find('\n').unwrap_or(self.rest().len());
            }
            if !self.skip("\n") {
                return;
            }
        }
    }

    /// Parses a redirection.
    fn redirection(
        &mut self,
        command: &mut Vec<Word>,
        documents: &mut Vec<Document>,
        depth: usize,
        found: &mut Found,
    ) -> Result<(), Unclear> {
        let into = self.next();
        if self.skip("(") {
            // A process substitution, which is a word of the command.
            self.list(Until::Parenthesis, depth + 1, found)?;
            command.push(Word { text: "<()".into(), dynamic: true, quoted: false });
            // For a shell the word continues here; for this parser it would be a comment.
            return if self.peek() == Some('#') { Err(Unclear::Form("`#` after `)`")) } else { Ok(()) };
        }
        let document = into == Some('<') && self.rest().starts_with('<') && !self.rest().starts_with("<<");
        let indented = document && self.skip("<-");
        while self.peek().is_some_and(|letter| matches!(letter, '<' | '>' | '&' | '|')) {
            self.at += 1;
        }
        while self.peek().is_some_and(|letter| matches!(letter, ' ' | '\t')) || self.skip("\\\n") {
            if matches!(self.peek(), Some(' ' | '\t')) {
                self.at += 1;
            }
        }
        if self.peek().is_none_or(|letter| "\n;&|()<>".contains(letter)) {
            // A second process substitution (`< <(…)`) or a mistake; both are parsed as such.
            return if document { Err(Unclear::Unfinished) } else { Ok(()) };
        }
        let target = self.word(depth, found)?;
        if document {
            if target.dynamic {
                return Err(Unclear::Form("a document whose end is a variable"));
            }
            documents.push(Document { end: target.text, live: !target.quoted, indented });
        }
        Ok(())
    }

    /// Skips a here-document, except for the substitutions in it.
    fn document(
        &mut self,
        document: &Document,
        until: Until,
        depth: usize,
        found: &mut Found,
    ) -> Result<(), Unclear> {
        let from = self.at;
        let mut joined = String::new();
        let mut end = None;
        while end.is_none() && self.at < self.text.len() {
            let start = self.at;
            let line = self.rest().split('\n').next().unwrap_or_default();
            let length = line.len();
            let line = if document.indented { line.trim_start_matches('\t') } else { line };
            // A line that continues on the next is one line, if continuations apply.
            let slashes = line.len() - line.trim_end_matches('\\').len();
            if document.live && slashes % 2 == 1 {
                joined.push_str(&line[..line.len() - 1]);
            } else {
                joined.push_str(line);
                if joined == document.end {
                    end = Some(start);
                }
                joined.clear();
            }
            self.at = (start + length + 1).min(self.text.len());
        }
        if end.is_none() && until == Until::Parenthesis {
            return Err(Unclear::Unfinished);
        }
        if document.live {
            let body = &self.text[from..end.unwrap_or(self.text.len())];
            let mut body = Reader { text: body, at: 0 };
            let mut ignored = Word::default();
            while let Some(letter) = body.next() {
                match letter {
                    '\\' => drop(body.next()),
                    '$' | '`' => body.expansion(letter, &mut ignored, depth, found)?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Parses one word, with its substitutions.
    fn word(&mut self, depth: usize, found: &mut Found) -> Result<Word, Unclear> {
        let mut word = Word::default();
        while let Some(letter) = self.peek() {
            match letter {
                ' ' | '\t' | '\n' | ';' | '&' | '|' | '(' | ')' | '<' | '>' => break,
                '\\' => {
                    self.at += 1;
                    match self.next() {
                        Some('\n') => {}
                        Some(letter) => {
                            word.quoted = true;
                            word.text.push(letter);
                        }
                        None => word.text.push('\\'),
                    }
                }
                '\'' => {
                    self.at += 1;
                    let end = self.rest().find('\'').ok_or(Unclear::Unfinished)?;
                    word.text.push_str(&self.text[self.at..self.at + end]);
                    word.quoted = true;
                    self.at += end + 1;
                }
                '"' => {
                    self.at += 1;
                    word.quoted = true;
                    self.double_quoted(&mut word, depth, found)?;
                }
                '$' if self.rest().starts_with("$'") => {
                    self.at += 2;
                    let end = self.rest().find('\'').ok_or(Unclear::Unfinished)?;
                    let inside = &self.text[self.at..self.at + end];
                    if inside.ends_with('\\') {
                        // Not every shell knows these quotes, and so where they end.
                        return Err(Unclear::Form("a quote within $'…'"));
                    }
                    word.text.push_str(inside);
                    (word.quoted, word.dynamic) = (true, true);
                    self.at += end + 1;
                }
                '$' | '`' => {
                    self.at += 1;
                    self.expansion(letter, &mut word, depth, found)?;
                }
                letter => {
                    self.at += letter.len_utf8();
                    // Globs and brace expansions.
                    let is_pattern = matches!(letter, '*' | '?' | '[');
                    let is_made = letter == '{' && self.peek().is_some_and(|next| !next.is_whitespace());
                    let is_home = letter == '~' && word.text.is_empty();
                    word.dynamic |= is_pattern || is_made || is_home;
                    word.text.push(letter);
                }
            }
        }
        Ok(word)
    }

    fn double_quoted(&mut self, word: &mut Word, depth: usize, found: &mut Found) -> Result<(), Unclear> {
        loop {
            match self.next().ok_or(Unclear::Unfinished)? {
                '"' => return Ok(()),
                '\\' => match self.next().ok_or(Unclear::Unfinished)? {
                    '\n' => {}
                    letter @ ('$' | '`' | '"' | '\\') => word.text.push(letter),
                    letter => word.text.extend(['\\', letter]),
                },
                letter @ ('$' | '`') => self.expansion(letter, word, depth, found)?,
                letter => word.text.push(letter),
            }
        }
    }

    /// Parses what follows a `$` or a backquote.
    fn expansion(
        &mut self,
        sign: char,
        word: &mut Word,
        depth: usize,
        found: &mut Found,
    ) -> Result<(), Unclear> {
        word.text.push(sign);
        if sign == '`' {
            word.dynamic = true;
            let mut line = String::new();
            loop {
                match self.next().ok_or(Unclear::Unfinished)? {
                    '`' => break,
                    '\\' => match self.next().ok_or(Unclear::Unfinished)? {
                        // Also unescape what is escaped only within quotes: this finds more commands, not
                        // fewer.
                        letter @ ('`' | '\\' | '$' | '"') => line.push(letter),
                        letter => line.extend(['\\', letter]),
                    },
                    letter => line.push(letter),
                }
            }
            return Reader { text: &line, at: 0 }.list(Until::End, depth + 1, found);
        }
        if self.skip("((") {
            word.dynamic = true;
            word.text.push_str("(())");
            return self.arithmetic(depth, found);
        }
        if self.skip("(") {
            word.dynamic = true;
            word.text.push_str("()");
            return self.list(Until::Parenthesis, depth + 1, found);
        }
        let begins = |letter: char| letter.is_alphanumeric() || "_{@*#?-$!\"'[".contains(letter);
        word.dynamic |= self.peek().is_some_and(begins);
        Ok(())
    }

    /// Parses `((`, which is arithmetic only if both parentheses close together and nothing else is possible.
    fn arithmetic(&mut self, depth: usize, found: &mut Found) -> Result<(), Unclear> {
        let mut open = 2_usize;
        let mut ignored = Word::default();
        while let Some(letter) = self.next() {
            match letter {
                '(' => open += 1,
                ')' if open == 2 && self.skip(")") => return Ok(()),
                ')' if open == 2 => break,
                ')' => open -= 1,
                '$' => self.expansion(letter, &mut ignored, depth, found)?,
                letter if letter.is_ascii_alphanumeric() => {}
                letter if " \t\n+-*/%<>=!&|^~?:;,._#{}[]@".contains(letter) => {}
                _ => break,
            }
        }
        Err(Unclear::Form("a form that begins with `((` and is not arithmetic"))
    }
}

impl Found {
    /// Adds a command, without keywords.
    fn add(&mut self, words: Vec<Word>) -> Result<(), Unclear> {
        let mut words = words.into_iter().peekable();
        while let Some(word) = words.peek() {
            let plain = if word.quoted { "" } else { word.text.as_str() };
            match plain {
                "if" | "then" | "elif" | "else" | "fi" | "while" | "until" | "do" | "done" | "esac" | "!"
                | "{" | "}" => {}
                "time" => {
                    words.next();
                    while words.next_if(|word| matches!(word.text.as_str(), "-p" | "--")).is_some() {}
                    continue;
                }
                "function" => drop(words.next()),
                "coproc" => return Err(Unclear::Form("`coproc`")),
                // The rest are words, unless it is the short form.
                "for" | "select" => {
                    let (_, _name) = (words.next(), words.next());
                    if words.peek().is_some_and(|word| word.text == "do") {
                        continue;
                    }
                    return Ok(());
                }
                _ if is_assignment(&word.text) => {}
                _ => break,
            }
            words.next();
        }
        let Some(name) = words.peek() else { return Ok(()) };
        if name.dynamic && !matches!(name.text.as_str(), "[" | "[[") {
            return Err(Unclear::Name(name.text.clone()));
        }
        let words: Vec<String> = words.map(|word| word.text).collect();
        self.words += words.len();
        if self.words > MOST_WORDS {
            return Err(Unclear::TooLong);
        }
        self.commands.push(words);
        Ok(())
    }
}

/// `name=…`, `name+=…`, `name[…]=…`.
fn is_assignment(text: &str) -> bool {
    let Some((name, _)) = text.split_once('=') else { return false };
    let name = name.strip_suffix('+').unwrap_or(name);
    let name = name.split('[').next().unwrap_or(name);
    name.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
