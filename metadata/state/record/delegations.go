package record

import (
	"errors"

	"github.com/morainefs/moraine"
)

// DelegationsVersion is the version of the rows about delegations.
const DelegationsVersion = 1

// Numbers is a range of inode numbers that a session may still use.
type Numbers struct {
	Next, End moraine.InodeID // from Next up to End, not included
}

// Delegations is what a session has for the directories that it changes by itself.
type Delegations struct {
	Dirs     uint64    // directories delegated to it
	Reserved uint64    // how many inode numbers it has reserved so far
	Used     uint64    // how many of them it has used
	Numbers  []Numbers // reserved for the inodes that it makes there, in order, none empty
}

var errNumbers = errors.New("the reserved numbers are empty, or not in order")

// Encode returns the stored value.
func (d *Delegations) Encode() []byte { return d.fields(encoder(32 + 20*len(d.Numbers))).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (d *Delegations) Decode(b []byte) error { return d.fields(decoder(b)).End("delegations") }

func (d *Delegations) fields(c *codec) *codec {
	c.version(DelegationsVersion)
	uvarint(c, &d.Dirs)
	uvarint(c, &d.Reserved)
	uvarint(c, &d.Used)
	last := moraine.InodeID(0)
	all := list(c, &d.Numbers, 16)
	for i := range all {
		fixed64(c, &all[i].Next)
		fixed64(c, &all[i].End)
		if c.reading && (all[i].Next < last || all[i].End <= all[i].Next) {
			c.fail(errNumbers)
		}
		last = all[i].End
	}
	if c.reading && d.Dirs == 0 && d.Reserved == 0 {
		c.fail(errors.New("a session that has and had nothing has no row"))
	}
	return c
}

// Reserve adds a reservation of n numbers.
func (d *Delegations) Reserve(first moraine.InodeID, n uint64) {
	end := first + moraine.InodeID(n)
	d.Reserved += n
	if last := len(d.Numbers) - 1; last >= 0 && d.Numbers[last].End == first {
		d.Numbers[last].End = end
		return
	}
	d.Numbers = append(d.Numbers, Numbers{first, end})
}

// Take uses up a number, with those below it. It returns false if the number is not reserved.
func (d *Delegations) Take(id moraine.InodeID) bool {
	for i, r := range d.Numbers {
		if id < r.Next || id >= r.End {
			continue
		}
		rest := []Numbers{}
		if id+1 < r.End {
			rest = append(rest, Numbers{id + 1, r.End})
		}
		d.Numbers = append(rest, d.Numbers[i+1:]...)
		d.Used++
		return true
	}
	return false
}
