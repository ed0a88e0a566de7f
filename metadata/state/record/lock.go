package record

import (
	"errors"

	"github.com/morainefs/moraine/internal/locktable"
)

// LocksVersion is the version of the rows about locks.
const LocksVersion = 1

// lockBytes is the least size of a stored lock.
const lockBytes = 8 + 8 + 1 + 3

const (
	lockWrites = 1 << iota
	lockFlock
)

var errLocks = errors.New("the locks are not valid, or not in order")

// EncodeLocks returns the stored value of the advisory locks of an inode, of which there is at least
// one.
func EncodeLocks(t locktable.Table) []byte { return locksFields(encoder(2+24*len(t)), &t).B }

// DecodeLocks decodes the advisory locks of an inode.
func DecodeLocks(b []byte) (t locktable.Table, err error) {
	err = locksFields(decoder(b), &t).End("locks")
	return t, err
}

func locksFields(c *codec, t *locktable.Table) *codec {
	c.version(LocksVersion)
	all := list(c, (*[]locktable.Lock)(t), lockBytes)
	for i := range all {
		lockFields(c, &all[i])
	}
	if c.reading && (len(all) == 0 || !t.Ordered()) {
		c.fail(errLocks)
	}
	return c
}

func lockFields(c *codec, l *locktable.Lock) {
	var flags byte
	if l.Write {
		flags |= lockWrites
	}
	if l.Flock {
		flags |= lockFlock
	}
	fixed64(c, &l.Session)
	fixed64(c, &l.ID)
	oneByte(c, &flags)
	uvarint(c, &l.Start)
	length := l.End - l.Start
	uvarint(c, &length)
	uvarint(c, &l.PID)
	if c.reading {
		l.Write, l.Flock, l.End = flags&lockWrites != 0, flags&lockFlock != 0, l.Start+length
		if flags&^(lockWrites|lockFlock) != 0 || l.End < l.Start {
			c.fail(errLocks)
		}
	}
}
