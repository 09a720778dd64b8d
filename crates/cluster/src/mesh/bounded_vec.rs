//! Short lists on the wire, stored inline in memory.
//!
//! The deserializer of `SmallVec` reserves the length that the sender claims, so a frame of ten
//! bytes could claim all memory; this one reads item by item and stops at the bound of the list:
//! [`BOUNDED_VEC_MAX`], or that of [`combined`].

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;

/// The most items of a list: twice the most limits of one descriptor.
pub const BOUNDED_VEC_MAX: usize = 16;
/// The most verdicts of one [`CombinedCheck`](super::wire::CombinedCheck).
pub const COMBINED_VERDICTS_MAX: usize = 256;

pub(super) fn serialize<T, S>(items: &SmallVec<[T; 1]>, to: S) -> Result<S::Ok, S::Error>
where
    T: Serialize,
    S: Serializer,
{
    to.collect_seq(items)
}

pub(super) fn deserialize<'de, T, D>(from: D) -> Result<SmallVec<[T; 1]>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    at_most::<BOUNDED_VEC_MAX, T, D>(from)
}

/// Lists of at most [`COMBINED_VERDICTS_MAX`](super::COMBINED_VERDICTS_MAX) items.
pub(super) mod combined {
    use serde::{Deserialize, Deserializer};
    use smallvec::SmallVec;

    use super::COMBINED_VERDICTS_MAX;
    pub(in super::super) use super::serialize;

    pub(in super::super) fn deserialize<'de, T, D>(from: D) -> Result<SmallVec<[T; 1]>, D::Error>
    where
        T: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        super::at_most::<COMBINED_VERDICTS_MAX, T, D>(from)
    }
}

fn at_most<'de, const MAX: usize, T, D>(from: D) -> Result<SmallVec<[T; 1]>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct BoundedVec<T, const MAX: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for BoundedVec<T, MAX> {
        type Value = SmallVec<[T; 1]>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX} items")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut items = SmallVec::new();
            while let Some(item) = seq.next_element()? {
                if items.len() == MAX {
                    return Err(A::Error::invalid_length(MAX + 1, &self));
                }
                items.push(item);
            }
            Ok(items)
        }
    }

    from.deserialize_seq(BoundedVec::<T, MAX>(PhantomData))
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::super::codec::{self, VERSION};
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Message {
        #[serde(with = "super")]
        items: SmallVec<[u8; 1]>,
    }

    fn round_trip(len: usize) -> Result<Message, codec::Error> {
        let mut bytes = BytesMut::new();
        codec::encode(&Message { items: SmallVec::from_elem(7, len) }, VERSION, &mut bytes)?;
        let frame = codec::split(&mut bytes)?.expect("a whole frame");
        codec::decode(&frame, VERSION)
    }

    #[test]
    fn a_list_is_read_up_to_its_bound() {
        assert_eq!(
            round_trip(BOUNDED_VEC_MAX).expect("within the bound").items.len(),
            BOUNDED_VEC_MAX
        );
        assert!(round_trip(BOUNDED_VEC_MAX + 1).is_err());
    }

    #[test]
    fn a_claim_of_a_huge_list_reserves_nothing() {
        let claims_2_to_the_60 = [VERSION, 253, 0, 0, 0, 0, 0, 0, 0, 16, 1];
        assert!(codec::decode::<Message>(&claims_2_to_the_60, VERSION).is_err());
    }
}
