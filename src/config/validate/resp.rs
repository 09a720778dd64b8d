//! `[resp]`: the door for clients of Redis.

use tidegate_limiter::units::Span;

use super::{Invalid, invalid, within};
use crate::config::Resp;
use crate::config::node::THREADS_MAX;

pub(super) fn resp(resp: &Resp) -> Result<(), Invalid> {
    let is_name = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    if !is_name(&resp.username) {
        let problem = format!("{:?} is no name", resp.username);
        return Err(invalid("resp.username", problem, "use letters, digits and signs, no spaces"));
    }
    if resp.password.as_ref().is_some_and(|password| password.reveal().is_empty()) {
        let problem = "an empty password is none";
        return Err(invalid("resp.password", problem, "give a long random one, or remove it"));
    }
    if let Some(addr) = resp.listen
        && !addr.ip().is_loopback()
        && resp.password.is_none()
    {
        return Err(invalid(
            "resp.listen",
            format!("off loopback ({addr}) clients must name a password"),
            "set TIDEGATE_RESP__PASSWORD, or listen on 127.0.0.1",
        ));
    }
    within("resp.threads", resp.threads, 0..=THREADS_MAX)?;
    let (min, max) = (Span::from_secs(1), Span::from_secs(7 * 86_400));
    within("resp.idle_timeout", resp.idle_timeout, min..=max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_door_is_held_against_its_keys() {
        let at = |addr: &str| Resp { listen: addr.parse().ok(), ..Resp::default() };
        let with = |password: &str| Some(password.into());
        for good in [
            Resp::default(),
            at("127.0.0.1:6380"),
            at("[::1]:6380"),
            Resp { password: with("x"), ..at("0.0.0.0:6380") },
        ] {
            assert_eq!(resp(&good), Ok(()));
        }
        for (key, bad) in [
            ("resp.listen", at("0.0.0.0:6380")),
            ("resp.listen", at("[::]:6380")),
            ("resp.password", Resp { password: with(""), ..at("0.0.0.0:6380") }),
            ("resp.username", Resp { username: "a b".to_owned(), ..Resp::default() }),
            ("resp.threads", Resp { threads: 257, ..Resp::default() }),
            ("resp.idle_timeout", Resp { idle_timeout: Span::ZERO, ..Resp::default() }),
        ] {
            assert_eq!(resp(&bad).map_err(|invalid| invalid.key), Err(key), "{bad:?}");
        }
    }
}
