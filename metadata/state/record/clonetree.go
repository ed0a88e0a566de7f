package record

import "github.com/morainefs/moraine"

// A clone of a tree is a job, whose pieces the leader runs. It builds the new
// tree below a directory without a name or parent, which nobody can see: a piece
// takes the next entries of one directory of the source, makes their like, and
// passes what it has seen in the row of that directory, so that a piece that is
// run again goes on from there. The last piece gives the tree its name. Where
// that cannot be, or the job is canceled, what was built dies as a removed tree
// does.
//
// Every file is cloned as it is when its turn comes, whole: one that has more
// tables than a piece may share, and changes between two pieces, is begun anew.

// TreeClone is the cursor of such a job.
type TreeClone struct {
	Top    moraine.InodeID // of the new tree
	Parent moraine.InodeID // where it is to appear
	Name   string
	// The file under way, where one has more tables than a piece shared.
	From, Into moraine.InodeID
	Generation moraine.Generation
	UpTo       int64 // tables that end up to here are shared
}

const treeCloneVersion = 1

func (c *TreeClone) Encode() []byte {
	b := PutFixed64(PutFixed64([]byte{treeCloneVersion}, uint64(c.Top)), uint64(c.Parent))
	b = PutFixed64(PutFixed64(PutString(b, c.Name), uint64(c.From)), uint64(c.Into))
	return PutUvarint(PutFixed64(b, uint64(c.Generation)), uint64(c.UpTo))
}

func (c *TreeClone) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(treeCloneVersion)
	c.Top, c.Parent, c.Name = moraine.InodeID(d.Fixed64()), moraine.InodeID(d.Fixed64()), d.string()
	c.From, c.Into = moraine.InodeID(d.Fixed64()), moraine.InodeID(d.Fixed64())
	c.Generation, c.UpTo = moraine.Generation(d.Fixed64()), int64(d.Uvarint())
	return d.End("clone of a tree")
}

// ClonedDir is the row of a directory that the job has yet to go through.
type ClonedDir struct {
	Into moraine.InodeID // its like in the new tree
	Last string          // name of its that was cloned last
}

func (c *ClonedDir) Encode() []byte {
	return PutString(PutFixed64([]byte{treeCloneVersion}, uint64(c.Into)), c.Last)
}

func (c *ClonedDir) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(treeCloneVersion)
	c.Into, c.Last = moraine.InodeID(d.Fixed64()), d.string()
	return d.End("directory of a clone")
}
