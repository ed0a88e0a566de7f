package record

import "github.com/morainefs/moraine"

// Cloning a tree is a job that the leader runs in pieces. It builds the new tree below a directory
// without name or parent, which nobody can see. A piece clones the next entries of one source
// directory and records the last name in that directory's row, so that a repeated piece continues
// from there. The last piece names the tree. If that is impossible, or the job is canceled, the new
// tree is removed like any removed tree.
//
// Each file is cloned whole, as it is at its turn. A file with more tables than one piece may share
// restarts if it changes between two pieces.

// TreeClone is the cursor of a CLONE_TREE job.
type TreeClone struct {
	Top    moraine.InodeID // of the new tree
	Parent moraine.InodeID // where the tree will appear
	Name   string
	// The file in progress, if it has more tables than one piece may share.
	From, Into moraine.InodeID
	Generation moraine.Generation
	UpTo       int64 // tables that end at or before this offset are shared
}

const treeCloneVersion = 1

// Encode returns the stored value.
func (c *TreeClone) Encode() []byte {
	b := PutFixed64(PutFixed64([]byte{treeCloneVersion}, uint64(c.Top)), uint64(c.Parent))
	b = PutFixed64(PutFixed64(PutString(b, c.Name), uint64(c.From)), uint64(c.Into))
	return PutUvarint(PutFixed64(b, uint64(c.Generation)), uint64(c.UpTo))
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (c *TreeClone) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(treeCloneVersion)
	c.Top, c.Parent, c.Name = moraine.InodeID(d.Fixed64()), moraine.InodeID(d.Fixed64()), d.string()
	c.From, c.Into = moraine.InodeID(d.Fixed64()), moraine.InodeID(d.Fixed64())
	c.Generation, c.UpTo = moraine.Generation(d.Fixed64()), int64(d.Uvarint())
	return d.End("clone of a tree")
}

// ClonedDir is the row of a source directory that the job has not finished.
type ClonedDir struct {
	Into moraine.InodeID // its copy in the new tree
	Last string          // last name cloned
}

// Encode returns the stored value.
func (c *ClonedDir) Encode() []byte {
	return PutString(PutFixed64([]byte{treeCloneVersion}, uint64(c.Into)), c.Last)
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (c *ClonedDir) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(treeCloneVersion)
	c.Into, c.Last = moraine.InodeID(d.Fixed64()), d.string()
	return d.End("directory of a clone")
}
