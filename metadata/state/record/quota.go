package record

import "errors"

// Quota is the most that may be below a directory, itself not counted. A field
// that is 0 bounds nothing.
//
// A command whose changes, all taken together, make what is below a directory
// more than its quota fails: nothing else decides, and no command is in flight
// when another one is applied, so that no number of writers gets past it. What
// is past it already (the quota came later, or a recount found more) may become
// less and change in place, and not grow.
type Quota struct {
	Bytes  uint64
	Inodes uint64
}

const quotaVersion = 1

func (q Quota) Encode() []byte {
	return PutUvarint(PutUvarint([]byte{quotaVersion}, q.Bytes), q.Inodes)
}

func (q *Quota) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(quotaVersion)
	q.Bytes, q.Inodes = d.Uvarint(), d.Uvarint()
	if d.Err == nil && *q == (Quota{}) {
		d.fail(errors.New("a quota without bounds"))
	}
	return d.End("quota")
}

// Exceeded reports whether now is past the quota, having grown by by.
func (q Quota) Exceeded(now, by Usage) bool {
	return q.Bytes != 0 && by.Bytes > 0 && now.Bytes > int64(q.Bytes) ||
		q.Inodes != 0 && by.Inodes > 0 && now.Inodes > int64(q.Inodes)
}
