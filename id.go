package moraine

import (
	"encoding/hex"
	"fmt"
	"strconv"
)

// Partition numbers one Raft group of the namespace. There is one today (0); every key and
// every request already contains it.
type Partition uint16

// Incarnation numbers a history of a cluster's metadata. Restoring from a backup, or forcing a
// quorum, begins another one, so that no number is ever issued twice. The first is 1.
type Incarnation uint8

// ID is the shape shared by InodeID, StripeID and the other numbers that the state machine
// issues. From the most significant bit down it has partition (16 bits), incarnation (8) and
// counter (40). 0 is never issued.
type ID uint64

// MakeID composes an ID. It panics if counter needs more than 40 bits. That is a trillion
// allocations in one incarnation, and reuse would be silent damage.
func MakeID(p Partition, i Incarnation, counter uint64) ID {
	if counter>>40 != 0 {
		panic(fmt.Sprintf("moraine: id counter %d needs more than 40 bits", counter))
	}
	return ID(uint64(p)<<48 | uint64(i)<<40 | counter)
}

// Partition returns the partition that issued the ID.
func (id ID) Partition() Partition { return Partition(id >> 48) }

// Incarnation returns the incarnation in which the ID was issued.
func (id ID) Incarnation() Incarnation { return Incarnation(id >> 40) }

// Counter returns the part of the ID that counts up within its incarnation.
func (id ID) Counter() uint64 { return uint64(id) & (1<<40 - 1) }

// String returns the ID in hexadecimal, without leading zeros.
func (id ID) String() string { return strconv.FormatUint(uint64(id), 16) }

type (
	// InodeID permanently names a file, directory or symbolic link.
	InodeID uint64
	// StripeID permanently names a stripe.
	StripeID uint64
	// TableID names an extent table.
	TableID uint64
	// ObjectID names the record of an object of the object tier.
	ObjectID uint64
	// InlineID names a record of the metadata with bytes of a small file.
	InlineID uint64
	// SessionID names one client's registration with the metadata service.
	SessionID uint64
	// JobID names a job.
	JobID uint64
	// RunID names a training run.
	RunID uint64
	// DeviceID is the short name of one device, assigned at registration. It is never reused; 0
	// is no device.
	DeviceID uint32
	// Epoch counts the starts of the process that serves a device. A copy that exists only in
	// memory counts only under the epoch in which it was put.
	Epoch uint64
	// Generation is the content version of an inode: every commit of content
	// raises it. Its top 8 bits are the incarnation.
	Generation uint64
	// LayoutVersion counts the layout changes of one stripe, from 1.
	LayoutVersion uint32
	// Tenant is the number of the owner of a directory tree. 0 is `default`.
	Tenant uint32
)

// RootInode is the directory `/` of partition 0: the first number of the first
// incarnation.
const RootInode = InodeID(1<<40 | 1)

// String returns the number in hexadecimal, as ID does.
func (id InodeID) String() string { return ID(id).String() }

// String returns the number in hexadecimal, as ID does.
func (id StripeID) String() string { return ID(id).String() }

// String returns the number in hexadecimal, as ID does.
func (id TableID) String() string { return ID(id).String() }

// String returns the number in hexadecimal, as ID does.
func (id ObjectID) String() string { return ID(id).String() }

// String returns the number in hexadecimal, as ID does.
func (id InlineID) String() string { return ID(id).String() }

// String returns the number in hexadecimal, as ID does.
func (id SessionID) String() string { return ID(id).String() }

// String returns the number in hexadecimal, as ID does.
func (id JobID) String() string { return ID(id).String() }

// UUID is a random 16-byte identity: of a cluster, of a device, of a trace.
type UUID [16]byte

// String returns u in the usual form: 8-4-4-4-12 hexadecimal digits.
func (u UUID) String() string {
	h := hex.EncodeToString(u[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// IsZero reports whether u is the zero UUID, which names nothing.
func (u UUID) IsZero() bool { return u == UUID{} }

// ParseUUID parses the form that String returns.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return u, &Error{Op: "parse uuid", Ref: s, Kind: InvalidArgument}
	}
	h := s[:8] + s[9:13] + s[14:18] + s[19:23] + s[24:]
	if _, err := hex.Decode(u[:], []byte(h)); err != nil {
		return UUID{}, &Error{Op: "parse uuid", Ref: s, Kind: InvalidArgument, Err: err}
	}
	return u, nil
}

// ChunkID names one chunk: chunk Index (data chunks first, then parity) of a
// stripe.
type ChunkID struct {
	Stripe StripeID
	Index  uint8
}

// String returns STRIPE/INDEX, such as 10000000001/3.
func (c ChunkID) String() string { return fmt.Sprintf("%s/%d", c.Stripe, c.Index) }

// MarkedIncarnation is an incarnation with a mark that distinguishes it from another one of the
// same number. If two operators each begin one without knowing of the other, both get the same
// number and different marks. The restore or the forced quorum that begins the incarnation
// draws the mark at random; that of a bootstrap is zero.
type MarkedIncarnation struct {
	Number Incarnation // 0: unknown
	Mark   UUID
}

// Differs reports whether both are known and not equal.
func (m MarkedIncarnation) Differs(from MarkedIncarnation) bool {
	return m.Number != 0 && from.Number != 0 && m != from
}

// Outlives reports whether m began after older.
func (m MarkedIncarnation) Outlives(older MarkedIncarnation) bool { return m.Number > older.Number }

// String returns the number, and the beginning of the mark if there is one.
func (m MarkedIncarnation) String() string {
	if m.Mark.IsZero() {
		return strconv.Itoa(int(m.Number))
	}
	return strconv.Itoa(int(m.Number)) + "-" + m.Mark.String()[:8]
}
