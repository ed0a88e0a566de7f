package record

import (
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
)

// A recount counts everything anew, in a column of its own, while the cluster
// works. It goes through the inodes in the order of their numbers; numbers only
// rise, so that what is made meanwhile comes later. What a command does to an
// inode that the recount has passed it does to both columns, and a directory
// that moves takes with it, in each, what that one has counted below it so far:
// so at every moment the new column is exactly the counts of the tree as it is,
// of the inodes up to the cursor. At the end the columns are held against each
// other, and the new one comes into force in one entry.
//
// The first one is started by the command that raises the feature level of a
// cluster with content; it has no old column.

// Phases of a recount.
const (
	RecountNone    = iota
	RecountCount   // inodes up to counted are in the new column
	RecountCompare // directories up to compared have been held against the old one
	RecountDrop    // dropping is being taken away
)

// UsageState is the singleton that says which counts are in force.
type UsageState struct {
	Live     uint8  // column in force; 0: none
	Quotas   uint64 // directories that have one
	Phase    uint8
	Building uint8 // column of the recount; 0 where none is under way
	Dropping uint8 // column that nothing reads any more
	Job      moraine.JobID
	Counted  moraine.InodeID // in building: all up to here
	Compared moraine.InodeID
	Wrong    uint64 // directories whose counts differ
	// The first of them: what was in force, and what is right.
	First    moraine.InodeID
	Was, Now Usage
}

const usageStateVersion = 1

func (s *UsageState) Encode() []byte {
	b := PutUvarint([]byte{usageStateVersion, s.Live}, s.Quotas)
	b = append(b, s.Phase)
	if s.Phase == RecountNone {
		return b
	}
	b = append(b, s.Building, s.Dropping)
	b = PutFixed64(b, uint64(s.Job))
	b = PutFixed64(b, uint64(s.Counted))
	b = PutFixed64(b, uint64(s.Compared))
	b = PutUvarint(b, s.Wrong)
	b = PutFixed64(b, uint64(s.First))
	for _, u := range []Usage{s.Was, s.Now} {
		b = putVarint(putVarint(putVarint(b, u.Bytes), u.Inodes), u.Steps)
	}
	return b
}

func (s *UsageState) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(usageStateVersion)
	s.Live = d.Byte()
	s.Quotas = d.Uvarint()
	if s.Phase = d.Byte(); s.Phase > RecountDrop {
		d.fail(fmt.Errorf("phase %d", s.Phase))
	}
	if s.Phase != RecountNone {
		s.Building, s.Dropping = d.Byte(), d.Byte()
		s.Job = moraine.JobID(d.Fixed64())
		s.Counted, s.Compared = moraine.InodeID(d.Fixed64()), moraine.InodeID(d.Fixed64())
		s.Wrong = d.Uvarint()
		s.First = moraine.InodeID(d.Fixed64())
		s.Was = Usage{d.varint(), d.varint(), d.varint()}
		s.Now = Usage{d.varint(), d.varint(), d.varint()}
	}
	if d.Err == nil && (s.Live > 2 || s.Building > 2 || s.Dropping > 2) {
		d.fail(errors.New("there are two columns"))
	}
	return d.End("state of the counts")
}

// Verdict says what a recount found, where something was wrong.
func (s *UsageState) Verdict() string {
	if s.Wrong == 0 {
		return ""
	}
	text := fmt.Sprintf("the counts of %d directories were wrong and have been put right; of inode %s: %d bytes and %d inodes, in truth %d and %d",
		s.Wrong, s.First, s.Was.Bytes, s.Was.Inodes, s.Now.Bytes, s.Now.Inodes)
	if s.Was.Steps != s.Now.Steps {
		text += fmt.Sprintf("; %d checkpoints, in truth %d", s.Was.Steps, s.Now.Steps)
	}
	return text
}
