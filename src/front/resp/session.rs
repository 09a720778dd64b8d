//! What one connection has said about itself, and the commands that are about that. No I/O.
//!
//! *Driving it*: one [`Session::admits`] before each command, [`Session::talk`] for each
//! [`Talk`]. A session begins unauthenticated when the door has a password.

use std::fmt::Write as _;
use std::net::SocketAddr;

use subtle::ConstantTimeEq;

use super::about;
use super::command::{Command, Talk, shown, wrong_number};
use super::read::{Words, integer};
use super::reply::{Protocol, Replies};
use crate::config::Secret;

/// Who may come in.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The name that goes with the password.
    pub username: String,
    /// `None`: everybody.
    pub password: Option<Secret>,
}

/// One connection.
#[derive(Debug)]
pub struct Session {
    /// Tells it from others of this node.
    id: i64,
    peer: SocketAddr,
    local: SocketAddr,
    protocol: Protocol,
    /// Whether it has said the password, or need not.
    is_let_in: bool,
    /// What it calls itself, for `CLIENT INFO`.
    name: Vec<u8>,
}

/// What is to become of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It goes on.
    GoOn,
    /// It is closed when the replies are sent.
    Close,
}

/// Most bytes of a connection's name.
const NAME_BYTES_MAX: usize = 256;

const NO_AUTH: &str = "NOAUTH Authentication required.";
const WRONG_PASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const HELLO_FIRST: &str = "NOAUTH HELLO must be called with the client already authenticated, \
     otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client \
     and select the RESP protocol version at the same time";
const NO_PASSWORD_SET: &str = "ERR AUTH <password> called without any password configured for the \
     default user. Are you sure your configuration is correct?";

impl Session {
    /// A connection that has said nothing yet.
    pub fn new(id: i64, peer: SocketAddr, local: SocketAddr, listener: &Credentials) -> Self {
        let is_let_in = listener.password.is_none();
        Self { id, peer, local, protocol: Protocol::Resp2, is_let_in, name: Vec::new() }
    }

    /// Whether the client need not say a password any more.
    pub fn is_let_in(&self) -> bool {
        self.is_let_in
    }

    /// What it speaks.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Whether `command` may be run now, or the error to answer.
    pub fn admits(&self, command: &Command<'_>) -> Result<(), &'static str> {
        let is_before = matches!(
            command,
            Command::Talk(Talk::Auth | Talk::Hello | Talk::Quit | Talk::Reset, _) | Command::Http
        );
        if self.is_let_in || is_before { Ok(()) } else { Err(NO_AUTH) }
    }

    /// Runs a command about the connection and writes its reply.
    pub fn talk(
        &mut self,
        talk: Talk,
        args: &Words<'_>,
        listener: &Credentials,
        replies: &mut Replies,
    ) -> Next {
        let outcome = match talk {
            Talk::Auth => self.auth(args, listener).map(|()| replies.simple("OK")),
            Talk::Hello => self.hello(args, listener, replies),
            Talk::Client => self.client(args, replies),
            Talk::Command => about::commands(args, self.protocol, replies),
            Talk::Config => about::config(args, self.protocol, replies),
            Talk::Info => {
                replies.bulk(about::info(args, self.local.port()).as_bytes());
                Ok(())
            }
            Talk::Echo => {
                replies.bulk(args.first().copied().unwrap_or_default());
                Ok(())
            }
            Talk::Ping => match args[..] {
                [] => {
                    replies.simple("PONG");
                    Ok(())
                }
                [text] => {
                    replies.bulk(text);
                    Ok(())
                }
                _ => Err(wrong_number(b"ping")),
            },
            Talk::Select => match args.first().map(|text| integer(text)) {
                Some(Some(0)) => {
                    replies.simple("OK");
                    Ok(())
                }
                Some(Some(_)) => Err("ERR DB index is out of range".to_owned()),
                _ => Err("ERR value is not an integer or out of range".to_owned()),
            },
            Talk::Reset => {
                let Self { id, peer, local, .. } = *self;
                *self = Self::new(id, peer, local, listener);
                replies.simple("RESET");
                Ok(())
            }
            Talk::Quit => {
                replies.simple("OK");
                return Next::Close;
            }
        };
        if let Err(error) = outcome {
            replies.error(&error);
        }
        Next::GoOn
    }
}

// === impl Session: who and what ===

impl Session {
    fn auth(&mut self, args: &Words<'_>, listener: &Credentials) -> Result<(), String> {
        let (username, password) = match args[..] {
            [password] if listener.password.is_some() => (listener.username.as_bytes(), password),
            [_] => return Err(NO_PASSWORD_SET.to_owned()),
            [username, password] => (username, password),
            _ => return Err("ERR syntax error".to_owned()),
        };
        self.let_in(username, password, listener)
    }

    fn let_in(
        &mut self,
        username: &[u8],
        password: &[u8],
        listener: &Credentials,
    ) -> Result<(), String> {
        if !listener.accepts(username, password) {
            return Err(WRONG_PASS.to_owned());
        }
        self.is_let_in = true;
        Ok(())
    }

    /// All of it, or none: a wrong password changes no protocol.
    fn hello(
        &mut self,
        args: &Words<'_>,
        listener: &Credentials,
        replies: &mut Replies,
    ) -> Result<(), String> {
        let mut protocol = self.protocol;
        let mut rest = &args[..];
        if let [version, after @ ..] = rest {
            protocol = match integer(version) {
                Some(2) => Protocol::Resp2,
                Some(3) => Protocol::Resp3,
                Some(_) => return Err("NOPROTO unsupported protocol version".to_owned()),
                None => {
                    let text = "ERR Protocol version is not an integer or out of range";
                    return Err(text.to_owned());
                }
            };
            rest = after;
        }
        let (mut user, mut name) = (None, None);
        loop {
            rest = match rest {
                [] => break,
                [option, username, password, after @ ..] if is(option, "AUTH") => {
                    user = Some((*username, *password));
                    after
                }
                [option, text, after @ ..] if is(option, "SETNAME") => {
                    name = Some(named(text)?);
                    after
                }
                [option, ..] => {
                    return Err(format!("ERR Syntax error in HELLO option '{}'", shown(option)));
                }
            };
        }
        if let Some((username, password)) = user {
            self.let_in(username, password, listener)?;
        }
        if !self.is_let_in {
            return Err(HELLO_FIRST.to_owned());
        }
        if let Some(name) = name {
            self.name = name;
        }
        self.protocol = protocol;
        about::hello(self.id, protocol, replies);
        Ok(())
    }

    fn client(&mut self, args: &Words<'_>, replies: &mut Replies) -> Result<(), String> {
        let [verb, rest @ ..] = &args[..] else { return Err(wrong_number(b"client")) };
        let verb = verb.to_ascii_lowercase();
        match (verb.as_slice(), rest) {
            (b"setname", [text]) => {
                self.name = named(text)?;
                replies.simple("OK");
            }
            (b"getname", []) if self.name.is_empty() => replies.null(self.protocol),
            (b"getname", []) => replies.bulk(&self.name),
            (b"id", []) => replies.integer(self.id),
            (b"info", []) | (b"list", _) => replies.bulk(self.line().as_bytes()),
            // What library a client is, and what its keys mean to a cache: nothing to us.
            (b"setinfo", [_, _]) | (b"no-evict" | b"no-touch", [_]) => replies.simple("OK"),
            (
                b"setname" | b"getname" | b"id" | b"info" | b"setinfo" | b"no-evict" | b"no-touch",
                _,
            ) => {
                return Err(wrong_number(&[b"client|".as_slice(), &verb].concat()));
            }
            _ => return Err(unknown_subcommand("CLIENT", &verb)),
        }
        Ok(())
    }

    /// The line of this connection; that of others is nobody's business here.
    fn line(&self) -> String {
        let Self { id, peer, local, name, protocol, .. } = self;
        let mut line = format!("id={id} addr={peer} laddr={local} name=");
        line.push_str(&String::from_utf8_lossy(name));
        let _ = writeln!(line, " db=0 resp={}", protocol.number());
        line
    }
}

impl Credentials {
    /// How long the words of one who has not said them yet may be says `read::Limits`. The time
    /// that a comparison takes depends on lengths, not on where two differ.
    fn accepts(&self, username: &[u8], password: &[u8]) -> bool {
        let name = self.username.as_bytes().ct_eq(username);
        let pass = match &self.password {
            Some(expected) => expected.reveal().as_bytes().ct_eq(password),
            None => 1.into(),
        };
        (name & pass).into()
    }
}

fn is(word: &[u8], option: &str) -> bool {
    word.eq_ignore_ascii_case(option.as_bytes())
}

fn named(text: &[u8]) -> Result<Vec<u8>, String> {
    if text.len() > NAME_BYTES_MAX || !text.iter().all(u8::is_ascii_graphic) {
        let text = "ERR Client names cannot contain spaces, newlines or special characters.";
        return Err(text.to_owned());
    }
    Ok(text.to_vec())
}

/// As Redis says it.
pub(super) fn unknown_subcommand(command: &str, verb: &[u8]) -> String {
    format!("ERR unknown subcommand '{}'. Try {command} HELP.", shown(verb))
}

#[cfg(test)]
mod tests {
    use super::super::command::command;
    use super::*;

    fn listener(password: Option<&str>) -> Credentials {
        Credentials { username: "default".to_owned(), password: password.map(Into::into) }
    }

    fn session(listener: &Credentials) -> Session {
        let addr = SocketAddr::from(([127, 0, 0, 1], 6380));
        Session::new(7, addr, addr, listener)
    }

    fn say(session: &mut Session, listener: &Credentials, line: &str) -> String {
        let mut words: Words<'_> = line.split(' ').map(str::as_bytes).collect();
        let mut replies = Replies::default();
        match command(&mut words) {
            Ok(command) => match (session.admits(&command), command) {
                (Err(error), _) => replies.error(error),
                (Ok(()), Command::Talk(talk, args)) => {
                    if session.talk(talk, &args, listener, &mut replies) == Next::Close {
                        replies.simple("closed");
                    }
                }
                (Ok(()), _) => replies.simple("decided"),
            },
            Err(error) => replies.error(&error),
        }
        String::from_utf8_lossy(replies.bytes()).replace("\r\n", "|")
    }

    #[test]
    fn nothing_is_decided_before_the_password() {
        let listener = listener(Some("secret"));
        let mut session = session(&listener);
        let mut says = |line: &str| say(&mut session, &listener, line);
        for line in ["PING", "CL.THROTTLE a 1 1 1", "TG.CHECK d k v", "CLIENT ID", "INFO"] {
            assert_eq!(says(line), "-NOAUTH Authentication required.|", "{line}");
        }
        assert_eq!(says("HELLO 3"), format!("-{HELLO_FIRST}|"));
        for line in [
            "AUTH wrong",
            "AUTH default wrong",
            "AUTH other secret",
            "AUTH secre",
            "HELLO 3 AUTH default x",
        ] {
            assert_eq!(says(line), format!("-{WRONG_PASS}|"), "{line}");
        }
        assert_eq!(says("PING"), "-NOAUTH Authentication required.|");
        assert_eq!(says("AUTH secret"), "+OK|");
        assert_eq!(says("CL.THROTTLE a 1 1 1"), "+decided|");
        // What it said once it has to say again after a reset.
        assert_eq!(says("RESET"), "+RESET|");
        assert_eq!(says("PING"), "-NOAUTH Authentication required.|");
        assert_eq!(says("AUTH default secret"), "+OK|");
        assert_eq!(says("PING"), "+PONG|");
        assert_eq!(says("QUIT"), "+OK|+closed|");
    }

    #[test]
    fn without_a_password_the_name_alone_must_be_right() {
        let listener = listener(None);
        let mut session = session(&listener);
        assert_eq!(say(&mut session, &listener, "AUTH x"), format!("-{NO_PASSWORD_SET}|"));
        assert_eq!(say(&mut session, &listener, "AUTH default x"), "+OK|");
        assert_eq!(say(&mut session, &listener, "AUTH you x"), format!("-{WRONG_PASS}|"));
    }

    #[test]
    fn hello_chooses_the_protocol_or_changes_nothing() {
        let listener = listener(None);
        let mut session = session(&listener);
        let mut says = |line: &str| say(&mut session, &listener, line);
        assert_eq!(says("CLIENT GETNAME"), "$-1|");
        assert!(says("HELLO").starts_with("*14|$6|server|"));
        assert!(says("HELLO 3 SETNAME me").starts_with("%7|$6|server|"));
        assert_eq!(says("CLIENT GETNAME"), "$2|me|");
        assert_eq!(says("HELLO 4"), "-NOPROTO unsupported protocol version|");
        assert_eq!(says("HELLO x"), "-ERR Protocol version is not an integer or out of range|");
        assert_eq!(says("HELLO 2 AUTH default"), "-ERR Syntax error in HELLO option 'AUTH'|");
        assert!(says("CLIENT INFO").contains(" name=me db=0 resp=3\n"));
        assert!(says("HELLO 2").starts_with("*14|"));
    }

    #[test]
    fn what_clients_send_at_their_start_is_answered() {
        let listener = listener(None);
        let mut session = session(&listener);
        let mut says = |line: &str| say(&mut session, &listener, line);
        for (line, reply) in [
            ("CLIENT SETNAME app-1", "+OK|"),
            ("CLIENT SETINFO LIB-NAME redis-py", "+OK|"),
            ("CLIENT NO-TOUCH on", "+OK|"),
            ("CLIENT ID", ":7|"),
            ("SELECT 0", "+OK|"),
            ("SELECT 1", "-ERR DB index is out of range|"),
            ("SELECT a", "-ERR value is not an integer or out of range|"),
            ("PING hello", "$5|hello|"),
            ("PING a b", "-ERR wrong number of arguments for 'ping' command|"),
            ("ECHO hello", "$5|hello|"),
            ("CONFIG GET save", "*2|$4|save|$0||"),
            ("CONFIG GET nothing", "*0|"),
            ("COMMAND COUNT", ":14|"),
            ("CLIENT SETNAME", "-ERR wrong number of arguments for 'client|setname' command|"),
            ("CLIENT KILL 1", "-ERR unknown subcommand 'kill'. Try CLIENT HELP.|"),
        ] {
            assert_eq!(says(line), reply, "{line}");
        }
    }
}
