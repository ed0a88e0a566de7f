package record

import (
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
)

// A recount counts everything again in its own column while the cluster works. It visits inodes by
// ascending number; numbers only grow, so that new inodes come later. A command that changes an
// inode already visited updates both columns. A directory that moves takes along what each column
// has counted below it. The new column therefore always has exactly the present tree's counts for
// the inodes up to the cursor. At the end the columns are compared, and one entry puts the new one
// in force.
//
// The command that raises the feature level of a cluster with content starts the first recount.
// That one has no old column.

// Phases of a recount.
const (
	RecountNone    = iota
	RecountCount   // inodes up to Counted are in the new column
	RecountCompare // directories up to Compared have been compared with the old one
	RecountDrop    // the old column is being deleted
)

// UsageState says which counts are in force.
type UsageState struct {
	Live     uint8  // column in force; 0: none
	Quotas   uint64 // number of directories with a quota
	Phase    uint8
	Building uint8 // column of the recount; 0 if none is in progress
	Dropping uint8 // column that is no longer read
	Job      moraine.JobID
	Counted  moraine.InodeID // last inode counted in Building
	Compared moraine.InodeID
	Wrong    uint64 // number of directories whose counts differ
	// The first of them: its counts in force, and the correct ones.
	First    moraine.InodeID
	Was, Now Usage
}

const usageStateVersion = 1

// Encode returns the stored value.
func (s *UsageState) Encode() []byte { return s.fields(encoder(96)).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (s *UsageState) Decode(b []byte) error { return s.fields(decoder(b)).End("state of the counts") }

func (s *UsageState) fields(c *codec) *codec {
	c.version(usageStateVersion)
	oneByte(c, &s.Live)
	uvarint(c, &s.Quotas)
	if oneByte(c, &s.Phase); s.Phase > RecountDrop {
		c.fail(fmt.Errorf("phase %d", s.Phase))
	}
	if s.Phase != RecountNone {
		oneByte(c, &s.Building)
		oneByte(c, &s.Dropping)
		fixed64(c, &s.Job)
		fixed64(c, &s.Counted)
		fixed64(c, &s.Compared)
		uvarint(c, &s.Wrong)
		fixed64(c, &s.First)
		s.Was.counts(c)
		s.Now.counts(c)
	}
	if s.Live > 2 || s.Building > 2 || s.Dropping > 2 {
		c.fail(errors.New("there are two columns"))
	}
	return c
}

// Verdict describes the differences that a recount found; empty if none.
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
