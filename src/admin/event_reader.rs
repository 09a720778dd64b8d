//! Server-sent events, as far as nodes send them: the data of each event, of one line.
//!
//! Source: WHATWG HTML, 9.2.6. Events of several lines of data, ids and retry times are not sent;
//! the last line counts, the others are ignored.

/// Longest line: all sources that a node watches, twice over. A snapshot of a cluster is smaller.
const LINE_BYTES_MAX: usize = 16 << 20;

/// The name of a field, and the space that follows it.
const EVENT: &[u8] = b"event: ";
const DATA: &[u8] = b"data: ";

/// Reads the bytes of a stream.
#[derive(Debug, Default)]
pub(super) struct EventReader {
    /// The line that is not complete.
    line: Vec<u8>,
    /// Of the event that is not complete.
    name: Vec<u8>,
    data: Vec<u8>,
}

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) name: Vec<u8>,
    pub(super) data: Vec<u8>,
}

/// A line is longer than any that a node sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event is longer than {LINE_BYTES_MAX} bytes")]
pub(super) struct TooLong;

impl EventReader {
    /// The events that `bytes` complete.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Vec<Event>, TooLong> {
        let mut events = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.line.len() + part.len() > LINE_BYTES_MAX {
                return Err(TooLong);
            }
            self.line.extend_from_slice(part);
            if let Some(line) = self.line.strip_suffix(b"\n") {
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                if let Some(data) = line.strip_prefix(DATA) {
                    self.data = data.to_vec();
                } else if let Some(name) = line.strip_prefix(EVENT) {
                    self.name = name.to_vec();
                } else if line.is_empty() {
                    let (name, data) =
                        (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
                    if !data.is_empty() {
                        events.push(Event { name, data });
                    }
                }
                self.line.clear();
            }
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STREAM: &[u8] =
        b":\n\nevent: blocked\ndata: {\"a\":1}\n\n:\n\ndata: x\r\n\r\nid: 7\n\nevent: y\ndata: z\n\n";

    fn expected() -> Vec<Event> {
        [("blocked", "{\"a\":1}"), ("", "x"), ("y", "z")]
            .map(|(name, data)| Event { name: name.into(), data: data.into() })
            .into()
    }

    proptest! {
        #[test]
        fn events_are_the_same_however_their_bytes_arrive(
            cuts in prop::collection::vec(0..STREAM.len(), 0..20),
        ) {
            let mut cuts = cuts;
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let mut stream = EventReader::default();
            let parts = cuts.windows(2).map(|cut| &STREAM[cut[0]..cut[1]]);
            let events: Vec<Event> = parts.flat_map(|part| stream.push(part).unwrap()).collect();
            prop_assert_eq!(events, expected());
        }

        #[test]
        fn bytes_that_are_no_stream_do_no_harm(
            bytes in prop::collection::vec(any::<u8>(), 0..500),
        ) {
            let _ = EventReader::default().push(&bytes);
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut stream = EventReader::default();
        let part = vec![b'x'; 1 << 20];
        let taken = (0..64).take_while(|_| stream.push(&part).is_ok()).count();
        assert_eq!(taken, 16);
        assert!(stream.line.len() <= LINE_BYTES_MAX);
    }
}
