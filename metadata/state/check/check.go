package check

import (
	"bytes"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// maxProblems bounds the problems that one Check lists.
const maxProblems = 100

// Check reads every pair of the partition and verifies the records against each other: reference
// counts, link counts, indexes, counters and the running sum. It returns a text for each
// contradiction, or nil. It keeps the whole namespace in memory and is meant for tests and
// inspection. An error means that the store failed or a value does not decode.
func Check(r *kvtx.View) ([]string, error) {
	c := &checker{View: r, inodes: make(map[moraine.InodeID]*record.Inode), names: make(map[moraine.InodeID]int),
		content: make(map[uint64]*record.Inode), refs: make(map[moraine.TableID]uint32), base: make(map[moraine.TableID]int64),
		stripes: make(map[moraine.StripeID]*moraine.Stripe), uses: make(map[moraine.StripeID]uint32),
		unsafe: make(map[moraine.TableID]bool), chunks: make(map[string]bool), sessions: make(map[moraine.SessionID]bool), rows: make(map[string]bool),
		objectUses: make(map[moraine.ObjectID]uint32), uploading: make(map[moraine.ObjectID]bool)}
	passes := []func() error{
		c.sum, c.allSessions, c.allInodes, c.dentries, c.nameRows, c.attributes, c.linkCounts, c.allRefs, c.tables, c.allStripes, c.grants, c.owned, c.holds, c.counts, c.usages, c.quotas, c.inMemory, c.unsafeRows,
	}
	for _, pass := range append(append(passes, c.clusterPasses()...), c.objectPasses()...) {
		if err := pass(); err != nil {
			return c.problems, err
		}
	}
	return c.problems, nil
}

// CheckWithin is Check for a state of at most records inodes and stripes. For a larger one it
// checks only the running sum, which needs no memory, and returns whole as false.
func CheckWithin(r *kvtx.View, records uint64) (problems []string, whole bool, err error) {
	n, err := kvtx.ReadCounters(r)
	if err != nil {
		return nil, false, err
	}
	if n.Inodes+n.Stripes <= records {
		problems, err = Check(r)
		return problems, true, err
	}
	c := &checker{View: r}
	err = c.sum()
	return c.problems, false, err
}

type checker struct {
	*kvtx.View
	problems []string

	inodes   map[moraine.InodeID]*record.Inode
	names    map[moraine.InodeID]int // dentries that name an inode
	content  map[uint64]*record.Inode
	refs     map[moraine.TableID]uint32
	base     map[moraine.TableID]int64 // length of the range of one reference
	stripes  map[moraine.StripeID]*moraine.Stripe
	uses     map[moraine.StripeID]uint32
	unsafe   map[moraine.TableID]bool // tables that refer to stripes with chunks that are, or were, only in memory
	chunks   map[string]bool          // required keys of the index of devices
	sessions map[moraine.SessionID]bool
	rows     map[string]bool // required keys of names
	detached int

	objectUses                                                                         map[moraine.ObjectID]uint32 // tables
	uploading                                                                          map[moraine.ObjectID]bool
	objectsSeen, objectBytes, intentsSeen, unsettledKeys, policiesSeen, badObjectsSeen uint64
}

func (c *checker) problem(format string, args ...any) {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, fmt.Sprintf(format, args...))
	}
}

// each calls fn with every pair of a table.
func (c *checker) each(table byte, fn func(key, value []byte) error) error {
	var bad error
	prefix := c.K.Table(table)
	err := c.R.Scan(prefix, kvtx.PrefixEnd(prefix), func(key, value []byte) bool {
		bad = fn(key, value)
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	return err
}

func (c *checker) sum() error {
	var sum, want record.Sum
	lo, hi := c.K.All()
	sumKey := c.K.Meta(record.MetaSum)
	var bad error
	err := c.R.Scan(lo, hi, func(key, value []byte) bool {
		if bytes.Equal(key, sumKey) {
			want, bad = record.DecodeSum(value)
			return bad == nil
		}
		sum.Add(key, value)
		return true
	})
	if err == nil {
		err = bad
	}
	if err == nil && sum != want {
		c.problem("the running sum is %x, the pairs give %x", want, sum)
	}
	return err
}

func (c *checker) allSessions() error {
	err := c.each(record.TabSession, func(key, value []byte) error {
		s := &record.Session{Id: moraine.SessionID(record.LastU64(key))}
		c.sessions[s.Id] = true
		return s.Decode(value)
	})
	if err != nil {
		return err
	}
	return c.each(record.TabEndedSession, func(key, _ []byte) error {
		id := moraine.SessionID(record.LastU64(key))
		if c.sessions[id] {
			c.problem("session %s is live and ended", id)
		}
		c.sessions[id] = false
		return nil
	})
}

// known reports whether a session is live or still being cleaned up.
func (c *checker) known(id moraine.SessionID) bool {
	_, ok := c.sessions[id]
	return ok
}

func (c *checker) counts() error {
	n, err := c.Counters()
	if err != nil {
		return err
	}
	live, ended := uint64(0), uint64(0)
	for _, isLive := range c.sessions {
		if isLive {
			live++
		} else {
			ended++
		}
	}
	for _, row := range []struct {
		what      string
		have, has uint64
	}{
		{"sessions", n[record.CSessions], live},
		{"ended sessions", n[record.CEndedSessions], ended},
		{"inodes", n[record.CInodes], uint64(len(c.inodes))},
		{"stripes", n[record.CStripes], uint64(len(c.stripes))},
	} {
		if row.have != row.has {
			c.problem("the counter of %s is %d, there are %d", row.what, row.have, row.has)
		}
	}
	return err
}
