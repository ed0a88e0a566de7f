package record

import "errors"

// Quota limits what may be below a directory, not counting the directory itself. A field of 0 sets
// no limit.
//
// A command fails if its changes together take a directory past its quota. Only this check decides,
// and no other command runs while one is applied, so that any number of concurrent writers stays
// within the quota. A tree already past its quota, because the quota is newer or a recount
// corrected the usage, may shrink and change in place, but not grow.
type Quota struct {
	Bytes  uint64
	Inodes uint64
}

const quotaVersion = 1

// Encode returns the stored value.
func (q Quota) Encode() []byte { return q.fields(encoder(16)).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (q *Quota) Decode(b []byte) error { return q.fields(decoder(b)).End("quota") }

func (q *Quota) fields(c *codec) *codec {
	c.version(quotaVersion)
	uvarint(c, &q.Bytes)
	uvarint(c, &q.Inodes)
	if *q == (Quota{}) {
		c.fail(errors.New("a quota without bounds"))
	}
	return c
}

// Exceeded reports whether usage now is past the quota and grew by by.
func (q Quota) Exceeded(now, by Usage) bool {
	return q.Bytes != 0 && by.Bytes > 0 && now.Bytes > int64(q.Bytes) ||
		q.Inodes != 0 && by.Inodes > 0 && now.Inodes > int64(q.Inodes)
}
