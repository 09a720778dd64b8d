//! The state of one connection, and the commands that read or change it. No I/O.
//!
//! *Usage*: [`Session::admits`] before each command, [`Session::run`] for each [`SessionCommand`].
//! A session begins unauthenticated when the listener has a password.

use std::fmt::Write as _;
use std::net::SocketAddr;

use subtle::ConstantTimeEq;

use super::command::{Command, SessionCommand, is, shown, unknown_subcommand, wrong_number};
use super::read::{Words, integer};
use super::reply::{Protocol, Replies};
use super::server_info;
use crate::config::Secret;

/// What a client has to authenticate with.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub username: String,
    /// `None`: no authentication.
    pub password: Option<Secret>,
}

#[derive(Debug)]
pub struct Session {
    /// Unique on this node.
    id: i64,
    peer: SocketAddr,
    local: SocketAddr,
    protocol: Protocol,
    is_authenticated: bool,
    /// Set by `CLIENT SETNAME`.
    name: Vec<u8>,
}

/// What happens to the connection after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Continue,
    /// It is closed after the replies are sent.
    Close,
}

const NAME_BYTES_MAX: usize = 256;
/// Subcommands of `CLIENT` that have a fixed number of arguments.
const CLIENT_VERBS: [&str; 7] =
    ["setname", "getname", "id", "info", "setinfo", "no-evict", "no-touch"];

const NO_AUTH: &str = "NOAUTH Authentication required.";
const WRONG_PASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const HELLO_FIRST: &str = "NOAUTH HELLO must be called with the client already authenticated, \
     otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client \
     and select the RESP protocol version at the same time";
const NO_PASSWORD_SET: &str = "ERR AUTH <password> called without any password configured for the \
     default user. Are you sure your configuration is correct?";

impl Session {
    pub fn new(id: i64, peer: SocketAddr, local: SocketAddr, credentials: &Credentials) -> Self {
        let is_authenticated = credentials.password.is_none();
        Self { id, peer, local, protocol: Protocol::Resp2, is_authenticated, name: Vec::new() }
    }

    /// The version in which replies are written.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Whether the client has authenticated, or need not.
    pub fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// Whether `command` may run now.
    ///
    /// # Errors
    ///
    /// The text of the error reply.
    pub fn admits(&self, command: &Command<'_>) -> Result<(), &'static str> {
        use SessionCommand::{Auth, Hello, Quit, Reset};
        let needs_no_auth =
            matches!(command, Command::Session(Auth | Hello | Quit | Reset, _) | Command::Http);
        if self.is_authenticated || needs_no_auth { Ok(()) } else { Err(NO_AUTH) }
    }

    /// Runs a command and writes its reply.
    pub fn run(
        &mut self,
        command: SessionCommand,
        args: &Words<'_>,
        credentials: &Credentials,
        replies: &mut Replies,
    ) -> Next {
        if let Err(error) = self.reply(command, args, credentials, replies) {
            replies.error(&error);
        }
        if command == SessionCommand::Quit { Next::Close } else { Next::Continue }
    }

    /// Runs a command and writes its reply unless it fails.
    fn reply(
        &mut self,
        command: SessionCommand,
        args: &Words<'_>,
        credentials: &Credentials,
        replies: &mut Replies,
    ) -> Result<(), String> {
        match command {
            SessionCommand::Auth => {
                self.auth(args, credentials)?;
                replies.simple("OK");
            }
            SessionCommand::Hello => self.hello(args, credentials, replies)?,
            SessionCommand::Client => self.client(args, replies)?,
            SessionCommand::Command => server_info::commands(args, self.protocol, replies)?,
            SessionCommand::Config => server_info::config(args, self.protocol, replies)?,
            SessionCommand::Info => {
                replies.bulk(server_info::info(args, self.local.port()).as_bytes());
            }
            SessionCommand::Echo => replies.bulk(args.first().copied().unwrap_or_default()),
            SessionCommand::Ping => match args[..] {
                [] => replies.simple("PONG"),
                [text] => replies.bulk(text),
                _ => return Err(wrong_number(b"ping")),
            },
            SessionCommand::Select => match args.first().and_then(|text| integer(text)) {
                Some(0) => replies.simple("OK"),
                Some(_) => return Err("ERR DB index is out of range".to_owned()),
                None => return Err("ERR value is not an integer or out of range".to_owned()),
            },
            SessionCommand::Reset => {
                let Self { id, peer, local, .. } = *self;
                *self = Self::new(id, peer, local, credentials);
                replies.simple("RESET");
            }
            SessionCommand::Quit => replies.simple("OK"),
        }
        Ok(())
    }
}

// === impl Session: commands ===

impl Session {
    fn auth(&mut self, args: &Words<'_>, credentials: &Credentials) -> Result<(), String> {
        let (username, password) = match args[..] {
            [password] if credentials.password.is_some() => {
                (credentials.username.as_bytes(), password)
            }
            [_] => return Err(NO_PASSWORD_SET.to_owned()),
            [username, password] => (username, password),
            _ => return Err("ERR syntax error".to_owned()),
        };
        self.authenticate(username, password, credentials)
    }

    fn authenticate(
        &mut self,
        username: &[u8],
        password: &[u8],
        credentials: &Credentials,
    ) -> Result<(), String> {
        if !credentials.accepts(username, password) {
            return Err(WRONG_PASS.to_owned());
        }
        self.is_authenticated = true;
        Ok(())
    }

    /// Applies all options or none: a wrong password does not change the protocol.
    fn hello(
        &mut self,
        args: &Words<'_>,
        credentials: &Credentials,
        replies: &mut Replies,
    ) -> Result<(), String> {
        let mut protocol = self.protocol;
        let mut rest = &args[..];
        if let [version, after @ ..] = rest {
            let no_number = "ERR Protocol version is not an integer or out of range";
            protocol = match integer(version).ok_or(no_number)? {
                2 => Protocol::Resp2,
                3 => Protocol::Resp3,
                _ => return Err("NOPROTO unsupported protocol version".to_owned()),
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
                    name = Some(client_name(text)?);
                    after
                }
                [option, ..] => {
                    return Err(format!("ERR Syntax error in HELLO option '{}'", shown(option)));
                }
            };
        }
        if let Some((username, password)) = user {
            self.authenticate(username, password, credentials)?;
        }
        if !self.is_authenticated {
            return Err(HELLO_FIRST.to_owned());
        }
        if let Some(name) = name {
            self.name = name;
        }
        self.protocol = protocol;
        server_info::hello(self.id, protocol, replies);
        Ok(())
    }

    fn client(&mut self, args: &Words<'_>, replies: &mut Replies) -> Result<(), String> {
        let [verb, rest @ ..] = &args[..] else { return Err(wrong_number(b"client")) };
        let verb = verb.to_ascii_lowercase();
        match (verb.as_slice(), rest) {
            (b"setname", [text]) => {
                self.name = client_name(text)?;
                replies.simple("OK");
            }
            (b"getname", []) if self.name.is_empty() => replies.null(self.protocol),
            (b"getname", []) => replies.bulk(&self.name),
            (b"id", []) => replies.integer(self.id),
            (b"info", []) | (b"list", _) => replies.bulk(self.describe().as_bytes()),
            // The client library, and hints for Redis' cache: accepted and ignored.
            (b"setinfo", [_, _]) | (b"no-evict" | b"no-touch", [_]) => replies.simple("OK"),
            (verb, _) if CLIENT_VERBS.iter().any(|known| is(verb, known)) => {
                return Err(wrong_number(&[b"client|", verb].concat()));
            }
            _ => return Err(unknown_subcommand("CLIENT", &verb)),
        }
        Ok(())
    }

    /// The line of `CLIENT INFO`. `CLIENT LIST` shows no other connection.
    fn describe(&self) -> String {
        let Self { id, peer, local, name, protocol, .. } = self;
        let mut line = format!("id={id} addr={peer} laddr={local} name=");
        line.push_str(&String::from_utf8_lossy(name));
        let _ = writeln!(line, " db=0 resp={}", protocol.number());
        line
    }
}

impl Credentials {
    /// Compares in a time that depends on the lengths only. `read::Limits` bounds the length of
    /// words before authentication.
    fn accepts(&self, username: &[u8], password: &[u8]) -> bool {
        let name = self.username.as_bytes().ct_eq(username);
        let expected = self.password.as_ref().map_or(password, |it| it.reveal().as_bytes());
        (name & expected.ct_eq(password)).into()
    }
}

fn client_name(text: &[u8]) -> Result<Vec<u8>, String> {
    if text.len() > NAME_BYTES_MAX || !text.iter().all(u8::is_ascii_graphic) {
        let text = "ERR Client names cannot contain spaces, newlines or special characters.";
        return Err(text.to_owned());
    }
    Ok(text.to_vec())
}

#[cfg(test)]
mod tests {
    use super::super::command::command;
    use super::*;

    fn credentials(password: Option<&str>) -> Credentials {
        Credentials { username: "default".to_owned(), password: password.map(Into::into) }
    }

    fn session(credentials: &Credentials) -> Session {
        let addr = SocketAddr::from(([127, 0, 0, 1], 6380));
        Session::new(7, addr, addr, credentials)
    }

    fn send(session: &mut Session, credentials: &Credentials, line: &str) -> String {
        let mut words: Words<'_> = line.split(' ').map(str::as_bytes).collect();
        let mut replies = Replies::default();
        match command(&mut words) {
            Ok(command) => match (session.admits(&command), command) {
                (Err(error), _) => replies.error(error),
                (Ok(()), Command::Session(command, args)) => {
                    if session.run(command, &args, credentials, &mut replies) == Next::Close {
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
    fn nothing_is_decided_before_authentication() {
        let credentials = credentials(Some("secret"));
        let mut session = session(&credentials);
        let mut reply_to = |line: &str| send(&mut session, &credentials, line);
        for line in ["PING", "CL.THROTTLE a 1 1 1", "TG.CHECK d k v", "CLIENT ID", "INFO"] {
            assert_eq!(reply_to(line), "-NOAUTH Authentication required.|", "{line}");
        }
        assert_eq!(reply_to("HELLO 3"), format!("-{HELLO_FIRST}|"));
        for line in [
            "AUTH wrong",
            "AUTH default wrong",
            "AUTH other secret",
            "AUTH secre",
            "HELLO 3 AUTH default x",
        ] {
            assert_eq!(reply_to(line), format!("-{WRONG_PASS}|"), "{line}");
        }
        assert_eq!(reply_to("PING"), "-NOAUTH Authentication required.|");
        assert_eq!(reply_to("AUTH secret"), "+OK|");
        assert_eq!(reply_to("CL.THROTTLE a 1 1 1"), "+decided|");
        // A reset also resets authentication.
        assert_eq!(reply_to("RESET"), "+RESET|");
        assert_eq!(reply_to("PING"), "-NOAUTH Authentication required.|");
        assert_eq!(reply_to("AUTH default secret"), "+OK|");
        assert_eq!(reply_to("PING"), "+PONG|");
        assert_eq!(reply_to("QUIT"), "+OK|+closed|");
    }

    #[test]
    fn without_a_password_only_the_username_is_compared() {
        let credentials = credentials(None);
        let mut session = session(&credentials);
        assert_eq!(send(&mut session, &credentials, "AUTH x"), format!("-{NO_PASSWORD_SET}|"));
        assert_eq!(send(&mut session, &credentials, "AUTH default x"), "+OK|");
        assert_eq!(send(&mut session, &credentials, "AUTH you x"), format!("-{WRONG_PASS}|"));
    }

    #[test]
    fn hello_selects_the_protocol_or_changes_nothing() {
        let credentials = credentials(None);
        let mut session = session(&credentials);
        let mut reply_to = |line: &str| send(&mut session, &credentials, line);
        assert_eq!(reply_to("CLIENT GETNAME"), "$-1|");
        assert!(reply_to("HELLO").starts_with("*14|$6|server|"));
        assert!(reply_to("HELLO 3 SETNAME me").starts_with("%7|$6|server|"));
        assert_eq!(reply_to("CLIENT GETNAME"), "$2|me|");
        assert_eq!(reply_to("HELLO 4"), "-NOPROTO unsupported protocol version|");
        assert_eq!(reply_to("HELLO x"), "-ERR Protocol version is not an integer or out of range|");
        assert_eq!(reply_to("HELLO 2 AUTH default"), "-ERR Syntax error in HELLO option 'AUTH'|");
        assert!(reply_to("CLIENT INFO").contains(" name=me db=0 resp=3\n"));
        assert!(reply_to("HELLO 2").starts_with("*14|"));
    }

    #[test]
    fn commands_that_clients_send_at_connect_are_supported() {
        let credentials = credentials(None);
        let mut session = session(&credentials);
        let mut reply_to = |line: &str| send(&mut session, &credentials, line);
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
            ("COMMAND COUNT", ":17|"),
            ("CLIENT SETNAME", "-ERR wrong number of arguments for 'client|setname' command|"),
            ("CLIENT KILL 1", "-ERR unknown subcommand 'kill'. Try CLIENT HELP.|"),
        ] {
            assert_eq!(reply_to(line), reply, "{line}");
        }
    }
}
